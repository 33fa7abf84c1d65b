// SPDX-License-Identifier: Apache-2.0
//! What `op!` of ops.rs becomes: the builder of an operation, and its prepared call.
//!
//! `Builder(name: params, function, workspace function)` is followed by the fields.  A field is
//! `name set_name: kind, "words";`.  The kind is `in` or `out` for a tensor, else what the setter takes: a
//! number's type, `bool`, or `enum` and the enum's name.  Fields under `new` are its arguments,
//! those under `may` have a method each.  tests/golden/call.rs reads the same rows.

/// What the caller hands over for a field.
macro_rules! argument {
    ($a:lifetime in) => { impl Into<$crate::Tensor<$a>> };
    ($a:lifetime out) => { impl Into<$crate::TensorMut<$a>> };
    ($a:lifetime enum $name:ident) => { $crate::all::$name };
    ($a:lifetime $scalar:ident) => { $scalar };
}

/// Writes it to the params struct, and notes whose memory a tensor is.
macro_rules! set {
    ($call:ident.$field:ident: in) => {
        let tensor: $crate::Tensor = $field.into();
        $call.params.$field = tensor.raw;
        $call.places.note(stringify!($field), tensor.home);
    };
    ($call:ident.$field:ident: out) => {
        let tensor: $crate::TensorMut = $field.into();
        $call.params.$field = tensor.as_tensor().raw;
        $call.places.note(stringify!($field), tensor.as_tensor().home);
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

/// The method of a prepared call that exchanges a field: a tensor's place is checked here.
macro_rules! exchange {
    ($op:ident $a:lifetime $field:ident $set:ident: in, $words:literal) => {
        #[doc = concat!("From now on `", stringify!($field), "` is another tensor: ", $words)]
        pub fn $set(&mut self, tensor: impl Into<$crate::Tensor<$a>>) -> $crate::Result<&mut Self> {
            let tensor = tensor.into();
            tensor.home.check(stringify!($op), stringify!($field), self.ctx)?;
            self.call.params.$field = tensor.raw;
            Ok(self)
        }
    };
    ($op:ident $a:lifetime $field:ident $set:ident: out, $words:literal) => {
        #[doc = concat!("From now on `", stringify!($field), "` is another tensor: ", $words)]
        pub fn $set(
            &mut self,
            tensor: impl Into<$crate::TensorMut<$a>>,
        ) -> $crate::Result<&mut Self> {
            let tensor = tensor.into();
            tensor.as_tensor().home.check(stringify!($op), stringify!($field), self.ctx)?;
            self.call.params.$field = tensor.as_tensor().raw;
            Ok(self)
        }
    };
    ($op:ident $a:lifetime $field:ident $set:ident: $($kind:ident)+, $words:literal) => {
        #[doc = concat!("From now on `", stringify!($field), "` is another value: ", $words)]
        pub fn $set(&mut self, $field: argument!($a $($kind)+)) -> &mut Self {
            let call = &mut self.call;
            set!(call.$field: $($kind)+);
            self
        }
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
        $new:ident { $($must:ident $set_must:ident: $($must_kind:ident)+, $must_words:literal;)* }
        may { $($may:ident $set_may:ident: $($may_kind:ident)+, $may_words:literal;)* }
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

            /// Writes the numbers of a [method](crate::experimental::Recipe), after the fields that it
            /// needs and before numbers of your own.  Experimental.
            pub fn recipe(&mut self, name: &str) -> $crate::Result<&mut Self> {
                let params: *mut $crate::sys::$params = &mut self.params;
                unsafe {
                    $crate::recipe::apply(name, concat!(stringify!($op), "\0"), params.cast())
                }?;
                Ok(self)
            }

            /// Valid, supported, how many bytes of workspace: without touching data.  It allocates none.
            pub fn workspace(&self, ctx: &$crate::Context) -> $crate::Result<usize> {
                let mut bytes = 0;
                $crate::check(unsafe {
                    $crate::sys::$workspace(ctx.as_raw(), &self.params, &mut bytes)
                })?;
                Ok(bytes)
            }

            /// Runs it: done on return on a host context, enqueued on others.  A call that is kept may
            /// run many times.
            pub fn run(&self, ctx: &$crate::Context) -> $crate::Result<()> {
                self.places.check(stringify!($op), ctx)?;
                $crate::check(unsafe { $crate::sys::$run(ctx.as_raw(), &self.params) })
            }

            /// The call, checked and bound to a context: [`Prepared`](crate::Prepared).
            pub fn prepare<'c>(
                &self,
                ctx: &'c $crate::Context,
            ) -> $crate::Result<$crate::Prepared<'c, Self>> {
                self.places.check(stringify!($op), ctx)?;
                self.workspace(ctx)?;
                Ok($crate::Prepared { ctx, call: Self { params: self.params, places: self.places } })
            }
        }

        #[doc = concat!("A kept call of `", stringify!($op), "`.")]
        impl<'a> $crate::Prepared<'_, $name<'a>> {
            /// Runs it as it stands.
            #[inline]
            pub fn run(&self) -> $crate::Result<()> {
                $crate::check(unsafe { $crate::sys::$run(self.ctx.as_raw(), &self.call.params) })
            }

            /// Valid, supported, how many bytes of workspace, as it stands.
            pub fn workspace(&self) -> $crate::Result<usize> {
                self.call.workspace(self.ctx)
            }

            $(exchange!($op 'a $must $set_must: $($must_kind)+, $must_words);)*
            $(exchange!($op 'a $may $set_may: $($may_kind)+, $may_words);)*
        }
    };
}
