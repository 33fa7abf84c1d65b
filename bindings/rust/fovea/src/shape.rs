// SPDX-License-Identifier: Apache-2.0
//! Shapes and strides of the integers that Rust programs have.
use crate::{invalid, sys, Result};

/// Extents or strides: arrays, slices and vectors of `usize`, `isize`, `i64`, `i32`, `u64` or `u32`.
///
/// ```
/// use fovea::Tensor;
/// # fn main() -> fovea::Result<()> {
/// let x = vec![0f32; 24];
/// let (b, s) = (2usize, x.len() / 24);
/// Tensor::new(&x, [b, s, 3, 4])?; // no casts
/// Tensor::new(&x, &vec![2i64, 1, 3, 4])?;
/// let error = Tensor::new(&x, [2, -1, 3, 4]).unwrap_err();
/// assert_eq!(error.text(), "tensor: shape[1] is -1, wanted >= 0");
/// # Ok(())
/// # }
/// ```
pub trait AsShape {
    /// How many axes.
    fn axes(&self) -> usize;
    /// The number of one axis, whatever its type held.
    fn axis(&self, i: usize) -> i128;
}

/// An integer that counts elements.
pub trait Extent: Copy {
    /// The same number.
    fn number(self) -> i128;
}

macro_rules! extent {
    ($($ty:ty)*) => { $(impl Extent for $ty {
        #[inline]
        fn number(self) -> i128 {
            self as i128
        }
    })* };
}
extent!(usize isize i64 i32 u64 u32);

impl<T: Extent> AsShape for [T] {
    #[inline]
    fn axes(&self) -> usize {
        self.len()
    }
    #[inline]
    fn axis(&self, i: usize) -> i128 {
        self[i].number()
    }
}

impl<T: Extent, const N: usize> AsShape for [T; N] {
    #[inline]
    fn axes(&self) -> usize {
        N
    }
    #[inline]
    fn axis(&self, i: usize) -> i128 {
        self[i].number()
    }
}

impl<T: Extent> AsShape for Vec<T> {
    #[inline]
    fn axes(&self) -> usize {
        self.len()
    }
    #[inline]
    fn axis(&self, i: usize) -> i128 {
        self[i].number()
    }
}

impl<S: AsShape + ?Sized> AsShape for &S {
    #[inline]
    fn axes(&self) -> usize {
        (**self).axes()
    }
    #[inline]
    fn axis(&self, i: usize) -> i128 {
        (**self).axis(i)
    }
}

/// The axes of a shape or of strides, `what`, which 64 bits hold and are not negative.
#[inline]
pub(crate) fn numbers(
    what: &str,
    shape: &impl AsShape,
) -> Result<([i64; sys::FOVEA_MAX_DIMS], usize)> {
    let axes = shape.axes();
    if axes > sys::FOVEA_MAX_DIMS {
        return invalid(format!(
            "tensor: {what} has {axes} axes, wanted at most {}",
            sys::FOVEA_MAX_DIMS
        ));
    }
    let mut out = [0; sys::FOVEA_MAX_DIMS];
    for (i, to) in out[..axes].iter_mut().enumerate() {
        let number = shape.axis(i);
        *to = match i64::try_from(number) {
            Ok(fits) if fits >= 0 => fits,
            Ok(_) => return invalid(format!("tensor: {what}[{i}] is {number}, wanted >= 0")),
            Err(_) => {
                return invalid(format!(
                    "tensor: {what}[{i}] is {number}, wanted at most {}",
                    i64::MAX
                ))
            }
        };
    }
    Ok((out, axes))
}
