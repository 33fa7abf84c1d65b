// SPDX-License-Identifier: Apache-2.0
//! As much JSON as the header of a safetensors file needs.
use std::collections::BTreeMap;

#[derive(Debug)]
pub enum Json {
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    pub fn parse(text: &str) -> Json {
        let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
        let value = reader.value();
        reader.space();
        assert_eq!(reader.at, reader.bytes.len(), "text after the value in {text}");
        value
    }

    pub fn object(&self) -> &BTreeMap<String, Json> {
        match self {
            Json::Object(map) => map,
            other => panic!("wanted an object, got {other:?}"),
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Json::Text(text) => text,
            other => panic!("wanted a string, got {other:?}"),
        }
    }

    pub fn number(&self) -> f64 {
        match self {
            Json::Number(number) => *number,
            other => panic!("wanted a number, got {other:?}"),
        }
    }

    pub fn integers(&self) -> Vec<i64> {
        match self {
            Json::List(items) => items.iter().map(|item| item.number() as i64).collect(),
            other => panic!("wanted a list, got {other:?}"),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn space(&mut self) {
        while self.bytes.get(self.at).map_or(false, |c| c.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn peek(&mut self) -> u8 {
        self.space();
        *self.bytes.get(self.at).expect("the JSON ends early")
    }

    fn want(&mut self, mark: u8) {
        assert_eq!(self.peek() as char, mark as char, "at byte {}", self.at);
        self.at += 1;
    }

    /// Items between two marks, separated by commas.
    fn items(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self)) {
        self.want(open);
        while self.peek() != close {
            item(self);
            if self.peek() != close {
                self.want(b',');
            }
        }
        self.want(close);
    }

    fn value(&mut self) -> Json {
        match self.peek() {
            b'{' => {
                let mut map = BTreeMap::new();
                self.items(b'{', b'}', |reader| {
                    let key = reader.string();
                    reader.want(b':');
                    map.insert(key, reader.value());
                });
                Json::Object(map)
            }
            b'[' => {
                let mut list = Vec::new();
                self.items(b'[', b']', |reader| list.push(reader.value()));
                Json::List(list)
            }
            b'"' => Json::Text(self.string()),
            _ => self.number(),
        }
    }

    fn string(&mut self) -> String {
        self.want(b'"');
        let mut out = Vec::new();
        loop {
            match self.bytes[self.at] {
                b'"' => break,
                b'\\' => {
                    self.at += 1;
                    match self.bytes[self.at] {
                        b'n' => out.push(b'\n'),
                        mark @ (b'"' | b'\\' | b'/') => out.push(mark),
                        mark => panic!("escape \\{}", mark as char),
                    }
                }
                byte => out.push(byte),
            }
            self.at += 1;
        }
        self.at += 1;
        String::from_utf8(out).unwrap()
    }

    fn number(&mut self) -> Json {
        let start = self.at;
        let rest = &self.bytes[start..];
        let length =
            rest.iter().take_while(|c| c.is_ascii_alphanumeric() || b"+-.".contains(c)).count();
        self.at += length;
        let text = std::str::from_utf8(&rest[..length]).unwrap();
        Json::Number(text.parse().unwrap_or_else(|_| panic!("no number: {text}")))
    }
}

#[test]
fn reads_json() {
    let value = Json::parse(r#" {"a": [1, -25e0], "b\n\"": {"c": "x", "d": []} } "#);
    assert_eq!(value.object()["a"].integers(), [1, -25]);
    assert_eq!(value.object()["b\n\""].object()["c"].text(), "x");
}
