// SPDX-License-Identifier: Apache-2.0
//! Any operation by its name, through its builder: the rows of src/ops.rs and src/x_ops.rs, read by
//! another macro.
//! src/op.rs describes a row.

/// Takes a field out of `given`: a tensor if the vector has it, or a number.
macro_rules! take {
    ($given:ident, $field:ident: in) => {
        let $field = $given.input(stringify!($field));
    };
    ($given:ident, $field:ident: out) => {
        let mut $field = $given.output(stringify!($field));
    };
    ($given:ident, $field:ident: enum $name:ident) => {
        let number = $given.scalar(stringify!($field));
        let $field = number.map(|x| crate::call::all::$name(x as i32));
    };
    ($given:ident, $field:ident: bool) => {
        let $field = $given.scalar(stringify!($field)).map(|x| x != 0.0);
    };
    ($given:ident, $field:ident: $scalar:ident) => {
        let $field = $given.scalar(stringify!($field)).map(|x| x as $scalar);
    };
}

/// A tensor that the vector must have.
macro_rules! must {
    ($field:ident: in) => {
        $field.as_ref().expect(stringify!($field))
    };
    ($field:ident: out) => {
        $field.as_mut().expect(stringify!($field))
    };
}

/// Calls the setter of a tensor that was taken.
macro_rules! give {
    ($call:ident, $field:ident: in) => {
        if let Some(tensor) = &$field {
            $call.$field(tensor);
        }
    };
    ($call:ident, $field:ident: out) => {
        if let Some(tensor) = &mut $field {
            $call.$field(tensor);
        }
    };
    ($call:ident, $field:ident: $($scalar:ident)+) => {};
}

/// Calls the setter of a number that was taken.
macro_rules! give_number {
    ($call:ident, $field:ident: in) => {};
    ($call:ident, $field:ident: out) => {};
    ($call:ident, $field:ident: $($scalar:ident)+) => {
        if let Some(number) = $field {
            $call.$field(number);
        }
    };
}

macro_rules! op {
    (
        $(#[$doc:meta])*
        $name:ident($op:ident: $($symbol:ident),*)
        new { $($must:ident $set_must:ident: $($must_kind:ident)+, $must_words:literal;)* }
        may { $($may:ident $set_may:ident: $($may_kind:ident)+, $may_words:literal;)* }
    ) => {
        #[allow(unused_mut)] // nothing optional
        pub fn $op(given: &mut crate::vector::Given, ctx: &fovea::Context) -> fovea::Result<()> {
            $(take!(given, $must: $($must_kind)+);)*
            $(take!(given, $may: $($may_kind)+);)*
            let mut call = crate::call::all::$name::new($(must!($must: $($must_kind)+)),*);
            $(give!(call, $may: $($may_kind)+);)*
            $(give_number!(call, $may: $($may_kind)+);)*
            if let Some(name) = given.recipe {
                call.recipe(name)?;
                $(give_number!(call, $may: $($may_kind)+);)* // they stand
            }
            let call = call.prepare(ctx)?;
            call.workspace()?;
            call.run()
        }
    };
}

macro_rules! names {
    ($($module:ident { $($op:ident)* })*) => {
        pub const OPS: &[&str] = &[$($(stringify!($op)),*),*];

        /// Every tensor the vector has is passed; `given` hands out each once.
        pub fn call(
            op: &str,
            given: &mut crate::vector::Given,
            ctx: &fovea::Context,
        ) -> fovea::Result<()> {
            match op {
                $($(stringify!($op) => super::$module::$op(given, ctx),)*)*
                _ => panic!("no operation {op}"),
            }
        }
    };
}

/// Every builder and enum.
mod all {
    pub use fovea::experimental::*;
    pub use fovea::*;
}

#[path = "names.rs"]
#[rustfmt::skip] // generated
mod names;
#[path = "../../src/ops.rs"]
#[rustfmt::skip] // generated
mod ops;
#[path = "../../src/x_ops.rs"]
#[rustfmt::skip] // generated
mod x_ops;
pub use names::{call, OPS};
