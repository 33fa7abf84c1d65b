// SPDX-License-Identifier: Apache-2.0
//! Views: what an operation reads and writes.
use crate::buffer::Home;
use crate::{invalid, sys, DType, Result};
use std::ffi::c_void;
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
}

/// Numbers without padding or forbidden values, which may be copied as bytes.
pub trait Plain: sealed::Sealed + Copy + 'static {}

/// Numbers that Rust has and the library computes with.
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
element!(f32 = F32, i8 = I8, i32 = I32, i64 = I64, u8 = U8);
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

/// A view that is read.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(crate) raw: sys::fovea_tensor,
    pub(crate) home: Home,
    count: usize, // elements the memory has
    memory: PhantomData<&'a [u8]>,
}

/// A view that is written.
#[derive(Debug)]
pub struct TensorMut<'a> {
    view: Tensor<'a>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Tensor<'a> {
    /// A row-major view of the front of a slice.
    pub fn new<T: Element>(data: &'a [T], shape: &[i64]) -> Result<Tensor<'a>> {
        Self::of::<T>(data, shape)
    }

    /// As [`Tensor::new`], of a format: `Tensor::of::<F16>(&bits, &shape)`.
    pub fn of<F: Format>(data: &'a [F::Storage], shape: &[i64]) -> Result<Tensor<'a>> {
        Self::over(data.as_ptr() as *mut c_void, elements::<F>(data), F::DTYPE, shape, Home::Host)
    }

    /// A view of memory that Rust does not know: device pointers of other libraries, views that
    /// overlap, host memory that the device can read.
    /// # Safety
    /// What shape and strides reach is of `dtype`, readable by every context this is passed to, and
    /// stays so and unwritten until those operations are done.
    pub unsafe fn from_raw(
        data: *const c_void,
        dtype: DType,
        shape: &[i64],
        strides: &[i64],
    ) -> Result<Tensor<'a>> {
        let mut view = Self::over(data as *mut c_void, usize::MAX, dtype, shape, Home::Vouched)?;
        view.restride(strides)?;
        Ok(view)
    }

    /// The same memory with other strides, in elements; 0 repeats along an axis.  Operations refuse
    /// 0 on every axis: strides that were forgotten look so.
    pub fn strided(mut self, strides: &[i64]) -> Result<Tensor<'a>> {
        self.restride(strides)?;
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
        shape: &[i64],
        home: Home,
    ) -> Result<Tensor<'a>> {
        if shape.len() > sys::FOVEA_MAX_DIMS {
            return invalid(std::format!(
                "tensor: {} dims, at most {}",
                shape.len(),
                sys::FOVEA_MAX_DIMS
            ));
        }
        let mut raw = sys::fovea_tensor {
            data,
            dtype: dtype.0,
            ndim: shape.len() as i32,
            ..Default::default()
        };
        let mut step = 1i64;
        for (i, &extent) in shape.iter().enumerate().rev() {
            raw.shape[i] = extent;
            raw.stride[i] = step;
            step = match step.checked_mul(extent.max(1)) {
                Some(next) => next,
                None => return invalid(std::format!("tensor: shape {shape:?} overflows")),
            };
        }
        if data.is_null() && !matches!(home, Home::Vouched) {
            raw.data = NOWHERE; // an empty buffer: NULL would say "not given"
        }
        let view = Tensor { raw, home, count, memory: PhantomData };
        view.fits()?;
        Ok(view)
    }

    fn restride(&mut self, strides: &[i64]) -> Result<()> {
        if strides.len() != self.raw.ndim as usize {
            return invalid(std::format!(
                "tensor: {} strides for {} dims",
                strides.len(),
                self.raw.ndim
            ));
        }
        self.raw.stride[..strides.len()].copy_from_slice(strides);
        self.fits()
    }

    /// Whether the memory holds every element that the view names.
    fn fits(&self) -> Result<()> {
        let dims = self.raw.ndim as usize;
        let (shape, stride) = (&self.raw.shape[..dims], &self.raw.stride[..dims]);
        if shape.iter().chain(stride).any(|&x| x < 0) {
            return invalid(std::format!(
                "tensor: shape {shape:?}, strides {stride:?}: wanted >= 0"
            ));
        }
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
    pub fn new<T: Element>(data: &'a mut [T], shape: &[i64]) -> Result<TensorMut<'a>> {
        Self::of::<T>(data, shape)
    }

    /// As [`TensorMut::new`], of a format: `TensorMut::of::<F16>(&mut bits, &shape)`.
    pub fn of<F: Format>(data: &'a mut [F::Storage], shape: &[i64]) -> Result<TensorMut<'a>> {
        let count = elements::<F>(data);
        Ok(Self::of_view(Tensor::over(
            data.as_mut_ptr().cast(),
            count,
            F::DTYPE,
            shape,
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
        shape: &[i64],
        strides: &[i64],
    ) -> Result<TensorMut<'a>> {
        Ok(Self::of_view(Tensor::from_raw(data, dtype, shape, strides)?))
    }

    /// The same memory with other strides, in elements.
    pub fn strided(self, strides: &[i64]) -> Result<TensorMut<'a>> {
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

fn elements<F: Format>(data: &[F::Storage]) -> usize {
    std::mem::size_of_val(data) / std::mem::size_of::<F::Storage>()
        * (8 * std::mem::size_of::<F::Storage>() / F::BITS)
}
