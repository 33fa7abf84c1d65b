// SPDX-License-Identifier: Apache-2.0
//! Views: what an operation reads and writes.
use crate::buffer::Home;
use crate::shape::{numbers, AsShape};
use crate::{invalid, sys, DType, Result};
use std::ffi::c_void;
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
}

/// Numbers without padding or forbidden values, which may be copied as bytes.
pub trait Plain: sealed::Sealed + Copy + 'static {}

/// Numbers that Rust has and the library computes with: `f32`, `i8`, `u8`, `i32`, `i64`, and with the
/// feature `half` also `half::f16` and `half::bf16`.
pub trait Element: Plain {
    /// The library's name for them.
    const DTYPE: DType;
}

/// How elements are stored: any [`Element`], or a format Rust has no type for.
pub trait Format: sealed::Sealed {
    /// What a slice of them is made of.
    type Storage: Plain;
    /// The library's name for them.
    const DTYPE: DType;
    /// Bits an element takes.
    const BITS: usize = 8 * std::mem::size_of::<Self::Storage>();
}

impl<T: Element> Format for T {
    type Storage = T;
    const DTYPE: DType = <T as Element>::DTYPE;
}

macro_rules! plain {
    ($($ty:ty)*) => { $(impl sealed::Sealed for $ty {} impl Plain for $ty {})* };
}
macro_rules! element {
    ($($ty:ty = $dtype:ident),*) => { $(impl Element for $ty {
        const DTYPE: DType = DType::$dtype;
    })* };
}
macro_rules! format {
    ($($(#[$doc:meta])* $name:ident: $storage:ty = $dtype:ident, $bits:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl Format for $name {
            type Storage = $storage;
            const DTYPE: DType = DType::$dtype;
            const BITS: usize = $bits;
        }
    )* };
}
plain!(f32 i8 i32 i64 u8 u16);
#[cfg(feature = "half")]
plain!(half::f16 half::bf16);
element!(f32 = F32, i8 = I8, i32 = I32, i64 = I64, u8 = U8);
#[cfg(feature = "half")]
element!(half::f16 = F16, half::bf16 = BF16);
format! {
    /// IEEE half precision, in `u16`.
    F16: u16 = F16, 16;
    /// bfloat16, in `u16`.
    Bf16: u16 = BF16, 16;
    /// 8-bit float with 4 exponent bits, in `u8`.
    E4m3: u8 = E4M3, 8;
    /// 8-bit float with 5 exponent bits, in `u8`.
    E5m2: u8 = E5M2, 8;
    /// 4-bit float, two to a `u8`.
    E2m1: u8 = E2M1, 4;
    /// 4-bit integer, two to a `u8`.
    I4: u8 = I4, 4;
    /// 8-bit power of two, in `u8`.
    E8m0: u8 = E8M0, 8;
}

/// Where empty buffers lie: aligned for every dtype, never read.
const NOWHERE: *mut c_void = 256 as *mut c_void;

/// A view that is read: memory, shape, strides.  It is `Copy`, borrows the memory and is used on the
/// thread that made it.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(crate) raw: sys::fovea_tensor,
    pub(crate) home: Home,
    count: usize, // elements the memory has
    memory: PhantomData<&'a [u8]>,
}

/// A view that is written.  It borrows the memory for itself.
#[derive(Debug)]
pub struct TensorMut<'a> {
    view: Tensor<'a>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Tensor<'a> {
    /// A row-major view of the front of a slice.  A shape that the slice does not hold is an error.
    pub fn new<T: Element>(data: &'a [T], shape: impl AsShape) -> Result<Tensor<'a>> {
        Self::of::<T>(data, shape)
    }

    /// As [`Tensor::new`], of a format: `Tensor::of::<F16>(&bits, [2, 64])`.
    pub fn of<F: Format>(data: &'a [F::Storage], shape: impl AsShape) -> Result<Tensor<'a>> {
        Self::over(data.as_ptr() as *mut c_void, elements::<F>(data), F::DTYPE, &shape, Home::Host)
    }

    /// A view of memory that Rust does not know: device pointers of other libraries, views that
    /// overlap, host memory that the device can read.  Strides are in elements.
    ///
    /// An array of another crate is such a view.  This is the adapter for `ndarray`, any layout:
    ///
    /// ```text
    /// fn view<'a>(x: &'a ndarray::ArrayView4<'_, f32>) -> fovea::Result<Tensor<'a>> {
    ///     unsafe { Tensor::from_raw(x.as_ptr().cast(), DType::F32, x.shape(), x.strides()) }
    /// }
    /// ```
    ///
    /// # Safety
    /// What shape and strides reach is of `dtype`, readable by every context this is passed to, and
    /// stays so and unwritten until those operations are done.
    pub unsafe fn from_raw(
        data: *const c_void,
        dtype: DType,
        shape: impl AsShape,
        strides: impl AsShape,
    ) -> Result<Tensor<'a>> {
        let mut view = Self::over(data as *mut c_void, usize::MAX, dtype, &shape, Home::Vouched)?;
        view.restride(&strides)?;
        Ok(view)
    }

    /// The same memory with other strides, in elements; 0 repeats along an axis.  Operations refuse
    /// 0 on every axis: strides that were forgotten look so.
    ///
    /// Other libraries' strides fit as they are: candle's `dims()` and `stride()` are `&[usize]`,
    /// ndarray's `shape()` is `&[usize]` and its `strides()` is `&[isize]`.
    pub fn strided(mut self, strides: impl AsShape) -> Result<Tensor<'a>> {
        self.restride(&strides)?;
        Ok(self)
    }

    /// The C struct.
    pub fn as_raw(&self) -> &sys::fovea_tensor {
        &self.raw
    }

    pub(crate) fn over(
        data: *mut c_void,
        count: usize,
        dtype: DType,
        shape: &impl AsShape,
        home: Home,
    ) -> Result<Tensor<'a>> {
        let (shape, axes) = numbers("shape", shape)?;
        let mut raw = sys::fovea_tensor {
            data,
            dtype: dtype.0,
            ndim: axes as i32,
            shape,
            ..Default::default()
        };
        let mut step = 1i64;
        for i in (0..axes).rev() {
            raw.stride[i] = step;
            step = match step.checked_mul(shape[i].max(1)) {
                Some(next) => next,
                None => {
                    return invalid(std::format!(
                        "tensor: shape[{i}] is {}: shape {:?} has more elements than 64 bits count",
                        shape[i],
                        &shape[..axes]
                    ))
                }
            };
        }
        if data.is_null() && !matches!(home, Home::Vouched) {
            raw.data = NOWHERE; // an empty buffer: NULL would say "not given"
        }
        let view = Tensor { raw, home, count, memory: PhantomData };
        view.fits()?;
        Ok(view)
    }

    fn restride(&mut self, strides: &impl AsShape) -> Result<()> {
        let (strides, axes) = numbers("stride", strides)?;
        if axes != self.raw.ndim as usize {
            return invalid(std::format!(
                "tensor: stride has {axes} axes, wanted {} as in shape",
                self.raw.ndim
            ));
        }
        self.raw.stride = strides;
        self.fits()
    }

    /// Whether the memory holds every element that the view names.
    fn fits(&self) -> Result<()> {
        let dims = self.raw.ndim as usize;
        let (shape, stride) = (&self.raw.shape[..dims], &self.raw.stride[..dims]);
        let reach: i128 =
            shape.iter().zip(stride).map(|(&n, &step)| (n as i128 - 1) * step as i128).sum();
        if shape.contains(&0) || reach < self.count as i128 {
            return Ok(());
        }
        let count = self.count;
        invalid(std::format!(
            "tensor: shape {shape:?}, strides {stride:?} reach element {reach} of {count}"
        ))
    }
}

impl<'a> TensorMut<'a> {
    /// A row-major view of the front of a slice.
    pub fn new<T: Element>(data: &'a mut [T], shape: impl AsShape) -> Result<TensorMut<'a>> {
        Self::of::<T>(data, shape)
    }

    /// As [`TensorMut::new`], of a format: `TensorMut::of::<F16>(&mut bits, [2, 64])`.
    pub fn of<F: Format>(data: &'a mut [F::Storage], shape: impl AsShape) -> Result<TensorMut<'a>> {
        let count = elements::<F>(data);
        Ok(Self::of_view(Tensor::over(
            data.as_mut_ptr().cast(),
            count,
            F::DTYPE,
            &shape,
            Home::Host,
        )?))
    }

    /// A writable view of memory that Rust does not know.
    /// # Safety
    /// As [`Tensor::from_raw`], and nothing else reads or writes it until the operations are done,
    /// but where the operation says that it may be one of its inputs.
    pub unsafe fn from_raw(
        data: *mut c_void,
        dtype: DType,
        shape: impl AsShape,
        strides: impl AsShape,
    ) -> Result<TensorMut<'a>> {
        Ok(Self::of_view(Tensor::from_raw(data, dtype, shape, strides)?))
    }

    /// The same memory with other strides, in elements.
    pub fn strided(self, strides: impl AsShape) -> Result<TensorMut<'a>> {
        Ok(Self::of_view(self.view.strided(strides)?))
    }

    /// The view, to be read.
    pub fn as_tensor(&self) -> &Tensor<'_> {
        &self.view
    }

    pub(crate) fn of_view(view: Tensor<'a>) -> TensorMut<'a> {
        TensorMut { view, memory: PhantomData }
    }
}

/// A view is passed as it is or by reference.
impl<'a> From<&Tensor<'a>> for Tensor<'a> {
    #[inline]
    fn from(view: &Tensor<'a>) -> Tensor<'a> {
        *view
    }
}

/// What was written is read again, for as long as the view is lent.
impl<'b> From<&'b TensorMut<'_>> for Tensor<'b> {
    #[inline]
    fn from(view: &'b TensorMut<'_>) -> Tensor<'b> {
        view.view
    }
}

/// A view that is lent is there again when the call that has it is gone.
impl<'b> From<&'b mut TensorMut<'_>> for TensorMut<'b> {
    #[inline]
    fn from(view: &'b mut TensorMut<'_>) -> TensorMut<'b> {
        TensorMut::of_view(view.view)
    }
}

fn elements<F: Format>(data: &[F::Storage]) -> usize {
    std::mem::size_of_val(data) / std::mem::size_of::<F::Storage>()
        * (8 * std::mem::size_of::<F::Storage>() / F::BITS)
}
