// SPDX-License-Identifier: Apache-2.0
//! What the rows of sys.rs become: newtypes, `repr(C)` structs and functions.

/// A C enum, `FOVEA_NAME: NAME = number, "words";` for each value.  A newtype: C may send any number.
macro_rules! c_enum {
    (
        $(#[$doc:meta])*
        $name:ident;
        $($long:ident: $short:ident = $value:literal, $words:literal;)*
    ) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub i32);

        impl $name {
            $(
                #[doc = $words]
                pub const $short: $name = $name($value);
            )*
        }
        $(
            #[doc = $words]
            pub const $long: $name = $name($value);
        )*
    };
}

/// A C struct, `field: type = offset, "words";` for each field.  Size and offsets are checked on compiling.
macro_rules! c_struct {
    (
        $(#[$doc:meta])*
        $name:ident: $size:literal bytes;
        $($field:ident: $ty:ty = $offset:literal, $words:literal;)*
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(
                #[doc = $words]
                pub $field: $ty,
            )*
        }

        impl Default for $name {
            /// All bytes zero: nothing given.
            fn default() -> Self {
                unsafe { core::mem::zeroed() }
            }
        }

        const _: () = assert!(core::mem::size_of::<$name>() == $size);
        #[cfg(fovea_offset_of)] // rustc 1.77
        const _: () = {
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}

/// Functions, linked or looked up.  A row of `operations`, `name: params, function, workspace
/// function;`, stands for two.
macro_rules! functions {
    (
        $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*
        operations { $($op:ident: $params:ident, $run:ident, $workspace:ident;)* }
    ) => {
        functions! {
            $($(#[$doc])* fn $name($($arg: $ty),*) $(-> $ret)?;)*
            $(
                /// Valid, supported, how many bytes: without touching data.
                fn $workspace(ctx: *mut fovea_context, params: *const $params, bytes: *mut usize)
                    -> fovea_status;
                #[doc = concat!("See ", stringify!($op), " of the header.")]
                fn $run(ctx: *mut fovea_context, params: *const $params) -> fovea_status;
            )*
        }
    };
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        #[cfg(not(feature = "dlopen"))]
        extern "C" {
            $($(#[$doc])* pub fn $name($($arg: $ty),*) $(-> $ret)?;)*
        }

        /// Every function of the ABI in one table.
        #[cfg(feature = "dlopen")]
        pub(crate) struct Table {
            $($name: unsafe extern "C" fn($($ty),*) $(-> $ret)?,)*
        }

        #[cfg(feature = "dlopen")]
        impl Table {
            pub(crate) fn read(library: &crate::dynamic::Library) -> Result<Table, String> {
                Ok(Table {
                    // A symbol of this name has this type: that is the ABI.
                    $($name: unsafe {
                        core::mem::transmute::<
                            *mut core::ffi::c_void,
                            unsafe extern "C" fn($($ty),*) $(-> $ret)?,
                        >(library.symbol(concat!(stringify!($name), "\0"))?)
                    },)*
                })
            }
        }

        $(
            $(#[$doc])*
            /// # Safety
            /// As the C function; the first call panics where [`load`](crate::load) fails.
            #[cfg(feature = "dlopen")]
            #[inline]
            pub unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
                (crate::dynamic::table().$name)($($arg),*)
            }
        )*
    };
}
