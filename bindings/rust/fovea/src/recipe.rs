// SPDX-License-Identifier: Apache-2.0
//! Methods by name: the table of the library.
use crate::{check, load, sys, text, Error, Result};
use std::ffi::{c_void, CString};
use std::os::raw::c_char;

/// A method: an operation and the numbers that it is called with.  `recipe` of a builder writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recipe {
    /// What `recipe` takes, `"streamingllm"`.
    pub name: String,
    /// As its paper writes it.
    pub title: String,
    /// The paper's arXiv number; without a paper the model that has the method.
    pub paper: String,
    /// Of the paper.
    pub year: i64,
    /// The operation that runs it, `"attention_forward"`.
    pub operation: String,
    /// The operation that trains it; "": none.
    pub backward: String,
    /// Fields and their values, as text.
    pub numbers: Vec<(String, String)>,
    /// Fields that must be given beside those of `new`.
    pub needs: Vec<String>,
    /// What it does here, and what it does not.
    pub words: String,
}

/// The method of a name; an unknown one is `Error::InvalidArgument`, with names that are near it.
///
/// ```
/// use fovea::{experimental::recipe, AttentionForward, Context, Tensor, TensorMut};
/// # fn main() -> fovea::Result<()> {
/// let (x, mut o) = (vec![0.1f32; 6 * 8], vec![0f32; 6 * 8]);
/// let x = Tensor::new(&x, [1, 6, 1, 8])?;
/// AttentionForward::new(&x, &x, &x, TensorMut::new(&mut o, [1, 6, 1, 8])?)
///     .recipe("streamingllm")?
///     .window_left(3) // instead of the method's 2000
///     .run(&Context::host()?)?;
/// assert_eq!(recipe("streamingllm")?.paper, "2309.17453");
/// # Ok(())
/// # }
/// ```
pub fn recipe(name: &str) -> Result<Recipe> {
    load()?;
    let (name, mut row) = (c_name(name)?, blank());
    check(unsafe { sys::fovea_x_recipe_get(name.as_ptr(), &mut row) })?;
    Ok(unsafe { Recipe::of(&row) })
}

/// Every method that the library has by name.
pub fn recipes() -> Result<Vec<Recipe>> {
    load()?;
    let one = |index| {
        let mut row = blank();
        check(unsafe { sys::fovea_x_recipe_at(index, &mut row) })?;
        Ok(unsafe { Recipe::of(&row) })
    };
    (0..unsafe { sys::fovea_x_recipe_count() }).map(one).collect()
}

/// Writes a method's numbers into the params of `operation`.
///
/// Safety: `operation` ends in NUL, and `params` points to its params.
pub(crate) unsafe fn apply(name: &str, operation: &str, params: *mut c_void) -> Result<()> {
    load()?;
    let name = c_name(name)?;
    check(sys::fovea_x_recipe_apply(name.as_ptr(), operation.as_ptr() as *const c_char, params))
}

fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| {
        Error::InvalidArgument(format!("recipe: there is no {name:?}: it holds a NUL"))
    })
}

fn blank() -> sys::fovea_x_recipe {
    let struct_size = std::mem::size_of::<sys::fovea_x_recipe>();
    sys::fovea_x_recipe { struct_size, ..Default::default() }
}

impl Recipe {
    /// Safety: the library filled it.
    unsafe fn of(row: &sys::fovea_x_recipe) -> Recipe {
        let split = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_string(), value.to_string())
        };
        Recipe {
            name: text(row.name),
            title: text(row.title),
            paper: text(row.paper),
            year: row.year,
            operation: text(row.operation),
            backward: text(row.backward),
            numbers: text(row.numbers).split_whitespace().map(split).collect(),
            needs: text(row.needs).split_whitespace().map(str::to_string).collect(),
            words: text(row.words),
        }
    }
}
