// Single tokens: the exact weights of the rows of one block, each with its heaviest keys.
const tokens = about.token_block === undefined ? null : { count: 0, chosen: -1 };

/** Weights of keys, {token: mean over the heads of the scope and over the rows asked for}. */
function tokenWeights() {
  const top = about.token_top, n = tokens.count, out = new Map();
  const first = tokens.chosen < 0 ? 0 : tokens.chosen, last = tokens.chosen < 0 ? n : tokens.chosen + 1;
  const per = 1 / (state.groups.length * (last - first));
  for (const g of state.groups) {
    for (let i = (g * n + first) * top; i < (g * n + last) * top; ++i) {
      const weight = data.tokenWeight[i];
      if (weight > 0) out.set(data.tokenKey[i], (out.get(data.tokenKey[i]) || 0) + weight * per);
    }
  }
  return out;
}

/** Fills a text with its tokens, each in the colour of its weight. */
function fillTokens(place, begin, end, weights, chosen) {
  const most = Math.max(...weights.values(), 1e-9), spans = [];
  for (let i = begin; i < end; ++i) {
    const part = element("span", about.token_text[i]), weight = weights.get(i) || 0;
    part.dataset.token = i;
    if (weight) {
      part.style.background = `color-mix(in srgb, var(--mark) ${Math.round(8 + 62 * weight / most)}%, transparent)`;
      part.title = `token ${number(i)}: ${percent(weight)}`;
    }
    if (i === chosen) part.className = "chosen";
    spans.push(part);
  }
  place.replaceChildren(...spans);
}

/** The texts of the selected blocks by token, and what is heaviest anywhere; false: not this block. */
function showTokens() {
  $("tokens").hidden = !tokens;
  if (!tokens) return false;
  const here = state.row === tokens.block;
  $("tokens-go").hidden = here;
  $("tokens-what").hidden = $("token-list").hidden = !here;
  if (!here) return false;
  const weights = tokenWeights(), chosen = tokens.chosen < 0 ? -1 : tokens.first + tokens.chosen;
  fillTokens($("row-text"), tokens.first, tokens.first + tokens.count, new Map(), chosen);
  const begin = state.key * about.block_keys;
  fillTokens($("key-text"), begin, Math.min(begin + about.block_keys, about.tokens), weights, -1);
  $("tokens-what").textContent = (chosen < 0 ? "All tokens of this block. Click one in its text, or walk with the arrows. " :
    `Token ${number(chosen)}, “${about.token_text[chosen].trim()}”. Escape goes back to all. `) +
    `Its heaviest keys, of the ${about.token_top} that each row keeps:`;
  const heaviest = [...weights].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 12);
  $("token-list").replaceChildren(...heaviest.map(([token, weight]) => {
    const button = element("button", `${about.token_text[token].trim() || "␣"} ${percent(weight)}`), line = element("li", "");
    button.type = "button";
    button.title = `token ${number(token)}, key block ${Math.floor(token / about.block_keys)}`;
    button.addEventListener("click", () => select(state.row, Math.floor(token / about.block_keys)));
    line.append(button);
    return line;
  }));
  return true;
}

function chooseToken(row) {
  tokens.chosen = row;
  fillTexts();
}

function listenToTokens() {
  if (!tokens) return;
  tokens.block = about.token_block;
  tokens.first = tokens.block * about.block_rows;
  tokens.count = rowTokens(tokens.block);
  $("tokens-go").textContent = `Block ${tokens.block} has the weights of single tokens`;
  $("tokens-go").addEventListener("click", () => select(tokens.block, state.key));
  const text = $("row-text");
  text.addEventListener("click", (event) => {
    const token = event.target.dataset.token;
    if (state.row === tokens.block && token !== undefined) chooseToken(token - tokens.first);
  });
  text.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (state.row !== tokens.block || !(by || event.key === "Escape")) return;
    chooseToken(by ? Math.min(Math.max(tokens.chosen + by, 0), tokens.count - 1) : -1);
    event.preventDefault();
  });
}
