// SPDX-License-Identifier: Apache-2.0
//! Lets the tests and examples find the libfovea.so they were linked with.
fn main() {
    if let Ok(dir) = std::env::var("DEP_FOVEA_LIB_DIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{dir}");
    }
}
