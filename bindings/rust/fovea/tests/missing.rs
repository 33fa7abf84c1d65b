// SPDX-License-Identifier: Apache-2.0
//! Without a library the first call says so.  A process of its own: the search happens once.
#![cfg(feature = "dlopen")]

#[test]
fn a_missing_library_is_an_error() {
    std::env::set_var("FOVEA_LIBRARY", "/nowhere/libfovea.so");
    for _ in 0..2 {
        match fovea::Context::host() {
            Err(fovea::Error::Library(text)) => {
                assert!(text.contains("/nowhere/libfovea.so"), "{text}")
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(fovea::version(), Err(fovea::Error::Library(_))));
}
