// SPDX-License-Identifier: Apache-2.0
//! Finds libfovea: $FOVEA_LIB_DIR, then pkg-config, then lib/ of the source tree.  Dependents see
//! the folder as DEP_FOVEA_LIB_DIR in their own build scripts, to set an rpath.
use std::path::{Path, PathBuf};
use std::{env, fs, process::Command};

fn main() {
    for name in ["FOVEA_LIB_DIR", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if rustc_minor() >= 77 {
        println!("cargo:rustc-cfg=fovea_offset_of");
    }
    if rustc_minor() >= 80 {
        println!("cargo:rustc-check-cfg=cfg(fovea_offset_of)");
    }
    if env::var_os("CARGO_FEATURE_DLOPEN").is_some() {
        return;
    }
    let fixed = env::var_os("CARGO_FEATURE_STATIC").is_some();
    let file = if fixed { "libfovea.a" } else { "libfovea.so" };
    if let Some(dir) = env::var_os("FOVEA_LIB_DIR").map(PathBuf::from) {
        if !dir.join(file).exists() {
            panic!("FOVEA_LIB_DIR is {}, which has no {file}", dir.display());
        }
        return link(&dir, fixed, &private_libraries(&dir));
    }
    if let Some(flags) = pkg_config(fixed) {
        if let Some(dir) = flags
            .iter()
            .filter_map(|f| f.strip_prefix("-L"))
            .map(PathBuf::from)
            .find(|d| d.join(file).exists())
        {
            return link(&dir, fixed, &flags);
        }
    }
    let tree = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../../lib");
    if tree.join(file).exists() {
        let dir = tree.canonicalize().unwrap();
        return link(&dir, fixed, &private_libraries(&dir));
    }
    panic!(
        "{file} not found: set FOVEA_LIB_DIR to its folder, install fovea.pc or use feature dlopen"
    );
}

/// Library and folder; for the static library also what it stands on.
fn link(dir: &Path, fixed: bool, flags: &[String]) {
    println!("cargo:rerun-if-changed={}", dir.join("libfovea.a").display());
    println!("cargo:rustc-link-search=native={}", dir.display());
    println!("cargo:lib_dir={}", dir.display());
    println!("cargo:rustc-link-lib={}=fovea", if fixed { "static" } else { "dylib" });
    if !fixed {
        return;
    }
    for flag in flags {
        if let Some(path) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={path}");
        } else if let Some(name) = flag.strip_prefix("-l").filter(|name| *name != "fovea") {
            println!("cargo:rustc-link-lib={name}");
        }
    }
}

/// The 63 of "rustc 1.63.0".
fn rustc_minor() -> u32 {
    let output = Command::new(env::var_os("RUSTC").unwrap()).arg("--version").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0)
}

fn pkg_config(fixed: bool) -> Option<Vec<String>> {
    let mut command = Command::new("pkg-config");
    command.args(["--libs", "fovea"]).env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
    if fixed {
        command.arg("--static");
    }
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(words(&String::from_utf8_lossy(&output.stdout)))
}

/// Libs.private of the fovea.pc that lies beside the library, in an install or a build tree.
fn private_libraries(dir: &Path) -> Vec<String> {
    let places = [dir.join("pkgconfig/fovea.pc"), dir.join("fovea.pc")];
    let text = places.iter().find_map(|place| fs::read_to_string(place).ok()).unwrap_or_default();
    match text.lines().find_map(|line| line.strip_prefix("Libs.private:")) {
        Some(flags) => words(flags),
        None => words("-lstdc++ -lm -lpthread -ldl -lrt"),
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}
