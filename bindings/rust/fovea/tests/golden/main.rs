// SPDX-License-Identifier: Apache-2.0
//! Every golden vector of tests/golden, called by its operation's name through the safe builders.
//! The format is described in tests/harness/golden.h.
mod call;
mod json;
mod vector;

use fovea::Context;
use std::path::Path;
use vector::Vector;

#[test]
fn golden_vectors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/golden");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().map_or(false, |x| x == "safetensors"))
        .collect();
    files.sort();
    let ctx = Context::host().unwrap();
    let (mut seen, mut methods) = (Vec::new(), Vec::new());
    let mut wrong = Vec::new();
    for file in &files {
        let vector = Vector::read(file);
        if let Err(text) = vector.check(&ctx) {
            wrong.push(format!("{}: {text}", file.display()));
        }
        assert!(
            ctx.last_kernel().starts_with(&format!("{}.host", vector.op)),
            "{}",
            ctx.last_kernel()
        );
        seen.push(vector.op);
        methods.extend(vector.recipe);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for op in call::OPS {
        assert!(
            seen.iter().any(|name| name == op),
            "no golden vector of {op} in {}",
            folder.display()
        );
    }
    for method in fovea::experimental::recipes().unwrap() {
        assert!(methods.contains(&method.name), "no golden vector of {}", method.name);
    }
    println!("{} vectors of {} operations", files.len(), call::OPS.len());
}
