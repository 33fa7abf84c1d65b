// SPDX-License-Identifier: Apache-2.0
//! The C ABI of fovea, letter for letter: see include/fovea for what each call means.
//!
//! The crate `fovea` is the safe layer over it.
//!
//! | feature | what |
//! | --- | --- |
//! | none | `libfovea.a` is linked in where it is found, else `libfovea.so` is linked |
//! | `static` | `libfovea.a` alone |
//! | `dlopen` | nothing is linked; [`load`] opens `libfovea.so` and looks every function up |
//!
//! Either way the same names exist, and `load` says whether they can be called.  The build script
//! looks at `FOVEA_LIBRARY` (a file) and `FOVEA_LIB_DIR` (a folder), asks pkg-config, and then looks
//! in this checkout and the system's folders.  With `dlopen` the program reads `FOVEA_LIBRARY` too.
//!
//! ```
//! use fovea_sys as sys;
//! sys::load().unwrap();
//! let mut ctx = std::ptr::null_mut();
//! unsafe {
//!     assert_eq!(sys::fovea_context_create(sys::FOVEA_HOST, 0, &mut ctx), sys::FOVEA_OK);
//!     sys::fovea_context_destroy(ctx);
//! }
//! ```
#![allow(non_camel_case_types)]
#![warn(missing_docs)]

#[macro_use]
mod declare;
#[rustfmt::skip] // generated
mod sys;
pub use sys::*;

/// Whether the library can be called: opened (feature `dlopen`) and of a fitting version.
pub fn load() -> Result<(), String> {
    #[cfg(feature = "dlopen")]
    dynamic::load()?;
    let version = unsafe { fovea_version() };
    // Before 1.0 a minor version may break the ABI.
    let epoch = |v: i32| if v < 10000 { v / 100 } else { v / 10000 * 100 };
    if epoch(version) != epoch(FOVEA_VERSION) {
        return Err(format!(
            "libfovea is version {version}, these bindings are for {FOVEA_VERSION}"
        ));
    }
    Ok(())
}

#[cfg(feature = "dlopen")]
mod dynamic {
    use std::ffi::{CStr, CString};
    use std::os::raw::{c_char, c_int, c_void};
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, Ordering};
    use std::sync::Once;

    extern "C" {
        fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
        fn dlerror() -> *const c_char;
    }

    /// The same number on Linux, the BSDs and macOS.
    const RTLD_NOW: c_int = 2;
    const NAME: &str = if cfg!(target_os = "macos") { "libfovea.0.dylib" } else { "libfovea.so.0" };

    /// An open library; never closed, its functions live as long as the process.
    pub(crate) struct Library(*mut c_void);

    impl Library {
        fn open(path: &str) -> Result<Library, String> {
            let c_path = CString::new(path).map_err(|_| format!("{path:?} has a NUL byte"))?;
            let handle = unsafe { dlopen(c_path.as_ptr(), RTLD_NOW) };
            if handle.is_null() {
                return Err(last_error());
            }
            Ok(Library(handle))
        }

        pub(crate) fn symbol(&self, name: &str) -> Result<*mut c_void, String> {
            let address = unsafe { dlsym(self.0, name.as_ptr().cast()) };
            if address.is_null() {
                return Err(format!("libfovea is older than these bindings: {}", last_error()));
            }
            Ok(address)
        }
    }

    fn last_error() -> String {
        let text = unsafe { dlerror() };
        if text.is_null() {
            return "no reason given".to_string();
        }
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    type Opened = Result<crate::sys::Table, String>;

    /// $FOVEA_LIBRARY alone if set, where the build script saw it, as the system finds it.
    fn open() -> Opened {
        let mut places = Vec::new();
        match std::env::var("FOVEA_LIBRARY") {
            Ok(path) if !path.is_empty() => places.push(path),
            _ => {
                #[cfg(fovea_found)]
                places.push(env!("FOVEA_FOUND").to_string());
                places.push(NAME.to_string());
            }
        }
        let mut reasons = Vec::new();
        for place in &places {
            match Library::open(place) {
                Ok(library) => return crate::sys::Table::read(&library),
                Err(why) => reasons.push(why),
            }
        }
        Err(format!("cannot open libfovea: {}: set FOVEA_LIBRARY to its file", reasons.join("; ")))
    }

    fn opened() -> &'static Opened {
        static ONCE: Once = Once::new();
        static TABLE: AtomicPtr<Opened> = AtomicPtr::new(null_mut());
        ONCE.call_once(|| TABLE.store(Box::into_raw(Box::new(open())), Ordering::Release));
        // Set above, once, and never freed.
        unsafe { &*TABLE.load(Ordering::Acquire) }
    }

    pub(crate) fn load() -> Result<(), String> {
        opened().as_ref().map(|_| ()).map_err(String::clone)
    }

    pub(crate) fn table() -> &'static crate::sys::Table {
        match opened() {
            Ok(table) => table,
            Err(text) => panic!("{text}"),
        }
    }
}
