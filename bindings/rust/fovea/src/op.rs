// SPDX-License-Identifier: Apache-2.0
//! What `op!` of ops.rs becomes: the builder of an operation.
//!
//! `Builder(name: params, function, workspace function)` is followed by the fields.  A field is
//! `name: kind, "words";`.  The kind is `in` or `out` for a tensor, else what the setter takes: a
//! number's type, `bool`, or `enum` and the enum's name.  Fields under `new` are its arguments,
//! those under `may` have a method each.  tests/golden/call.rs reads the same rows.

/// What the caller hands over for a field.
macro_rules! argument {
    ($a:lifetime in) => { &$a $crate::Tensor<'_> };
    ($a:lifetime out) => { &$a mut $crate::TensorMut<'_> };
    ($a:lifetime enum $name:ident) => { $crate::$name };
    ($a:lifetime $scalar:ident) => { $scalar };
}

/// Writes it to the params struct, and notes whose memory a tensor is.
macro_rules! set {
    ($call:ident.$field:ident: in) => {
        $call.params.$field = $field.raw;
        $call.places.note(stringify!($field), $field.home);
    };
    ($call:ident.$field:ident: out) => {
        $call.params.$field = $field.as_tensor().raw;
        $call.places.note(stringify!($field), $field.as_tensor().home);
    };
    ($call:ident.$field:ident: enum $name:ident) => {
        $call.params.$field = $field.0;
    };
    ($call:ident.$field:ident: bool) => {
        $call.params.$field = $field as i32;
    };
    ($call:ident.$field:ident: $scalar:ident) => {
        $call.params.$field = $field;
    };
}

/// The first line over `new`.
macro_rules! heading {
    () => {
        "Nothing given yet."
    };
    ($($field:ident)+) => {
        "What must be given:\n"
    };
}

// `new` is a fragment too: what the compiler says of it then points to the row, not here.
macro_rules! op {
    (
        $(#[$doc:meta])*
        $name:ident($op:ident: $params:ident, $run:ident, $workspace:ident)
        $new:ident { $($must:ident: $($must_kind:ident)+, $must_words:literal;)* }
        may { $($may:ident: $($may_kind:ident)+, $may_words:literal;)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'a> {
            params: $crate::sys::$params,
            places: $crate::buffer::Places<'a>,
        }

        impl<'a> $name<'a> {
            #[doc = heading!($($must)*)]
            $(#[doc = concat!("- `", stringify!($must), "` ", $must_words)])*
            #[allow(clippy::new_without_default, clippy::too_many_arguments)]
            pub fn $new($($must: argument!('a $($must_kind)+)),*) -> Self {
                let mut call = Self {
                    params: Default::default(),
                    places: $crate::buffer::Places::none(),
                };
                call.params.struct_size = std::mem::size_of::<$crate::sys::$params>();
                $(set!(call.$must: $($must_kind)+);)*
                call
            }

            $(
                #[doc = $may_words]
                pub fn $may(&mut self, $may: argument!('a $($may_kind)+)) -> &mut Self {
                    set!(self.$may: $($may_kind)+);
                    self
                }
            )*

            /// Valid, supported, how many bytes of workspace: without touching data.
            pub fn workspace(&self, ctx: &$crate::Context) -> $crate::Result<usize> {
                let mut bytes = 0;
                $crate::check(unsafe {
                    $crate::sys::$workspace(ctx.as_raw(), &self.params, &mut bytes)
                })?;
                Ok(bytes)
            }

            /// Runs it: done on return on a host context, enqueued on others.
            pub fn run(&self, ctx: &$crate::Context) -> $crate::Result<()> {
                self.places.check(stringify!($op), ctx)?;
                $crate::check(unsafe { $crate::sys::$run(ctx.as_raw(), &self.params) })
            }
        }
    };
}
