// SPDX-License-Identifier: Apache-2.0
//! One golden vector: read, hand out as tensors, call, compare.
use crate::call::call;
use crate::json::Json;
use fovea::{Bf16, Context, E4m3, E5m2, Tensor, TensorMut, F16};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Clone)]
enum Values {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Bf16(Vec<u16>),
    E4m3(Vec<u8>),
    E5m2(Vec<u8>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    I8(Vec<i8>),
    U8(Vec<u8>),
}

#[derive(Clone)]
struct Stored {
    shape: Vec<i64>,
    values: Values,
}

pub struct Vector {
    pub op: String,
    pub recipe: Option<String>,
    params: Json,
    outputs: Vec<String>,
    tolerance: f64,
    tensors: BTreeMap<String, Stored>,
}

/// The tensors and scalars of a call, by field name.
pub struct Given<'a> {
    inputs: BTreeMap<&'a str, &'a Stored>,
    outputs: BTreeMap<&'a str, &'a mut Stored>,
    params: &'a Json,
    /// The method whose numbers hold where `params` has none.
    pub recipe: Option<&'a str>,
}

impl<'a> Given<'a> {
    pub fn input(&mut self, name: &str) -> Option<Tensor<'a>> {
        self.inputs.remove(name).map(Stored::view)
    }

    pub fn output(&mut self, name: &str) -> Option<TensorMut<'a>> {
        self.outputs.remove(name).map(Stored::view_mut)
    }

    pub fn scalar(&self, name: &str) -> Option<f64> {
        self.params.object().get(name).map(Json::number)
    }
}

impl Vector {
    pub fn read(path: &Path) -> Vector {
        let bytes = std::fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = Json::parse(std::str::from_utf8(&bytes[8..8 + length]).unwrap());
        let data = &bytes[8 + length..];
        let mut tensors = BTreeMap::new();
        for (name, entry) in header.object().iter().filter(|(name, _)| *name != "__metadata__") {
            let entry = entry.object();
            let range = entry["data_offsets"].integers();
            let values =
                Values::read(entry["dtype"].text(), &data[range[0] as usize..range[1] as usize]);
            tensors.insert(name.clone(), Stored { shape: entry["shape"].integers(), values });
        }
        let metadata = header.object()["__metadata__"].object();
        Vector {
            op: metadata["op"].text().to_string(),
            recipe: metadata.get("recipe").map(|name| name.text().to_string()),
            params: Json::parse(metadata["params"].text()),
            outputs: metadata["outputs"].text().split(',').map(str::to_string).collect(),
            tolerance: metadata["tolerance"].text().parse().unwrap(),
            tensors,
        }
    }

    /// Calls the operation and compares every output.
    pub fn check(&self, ctx: &Context) -> Result<(), String> {
        let mut results: BTreeMap<&str, Stored> = BTreeMap::new();
        for name in &self.outputs {
            let mut result = self.tensors[name].clone();
            if !self.tensors.contains_key(&format!("{name}.after")) {
                result.values.poison();
            }
            results.insert(name, result);
        }
        let is_input =
            |name: &str| !self.outputs.iter().any(|o| o == name) && !name.ends_with(".after");
        let mut given = Given {
            inputs: self
                .tensors
                .iter()
                .map(|(n, t)| (n.as_str(), t))
                .filter(|(n, _)| is_input(n))
                .collect(),
            outputs: results.iter_mut().map(|(name, tensor)| (*name, tensor)).collect(),
            params: &self.params,
            recipe: self.recipe.as_deref(),
        };
        call(&self.op, &mut given, ctx).map_err(|error| error.to_string())?;
        if let Some(name) = given.inputs.keys().chain(given.outputs.keys()).next() {
            return Err(format!("{} has no field {name}", self.op));
        }
        for (name, got) in &results {
            let want = self.tensors.get(&format!("{name}.after")).unwrap_or(&self.tensors[*name]);
            self.compare(name, got, want)?;
        }
        Ok(())
    }

    fn compare(&self, name: &str, got: &Stored, want: &Stored) -> Result<(), String> {
        let exact =
            matches!(want.values, Values::I32(_) | Values::I64(_) | Values::I8(_) | Values::U8(_));
        let tolerance = if exact { 0.0 } else { self.tolerance };
        let (got, want) = (got.values.numbers(), want.values.numbers());
        assert_eq!(got.len(), want.len());
        for (i, (&g, &w)) in got.iter().zip(&want).enumerate() {
            let near = g == w
                || (g.is_nan() && w.is_nan())
                || (g - w).abs() <= tolerance * (1.0 + w.abs());
            if !near {
                return Err(format!("{name}[{i}] is {g}, wanted {w} within {tolerance}"));
            }
        }
        Ok(())
    }
}

impl Stored {
    fn view(&self) -> Tensor<'_> {
        match &self.values {
            Values::F32(x) => Tensor::new(x, &self.shape),
            Values::F16(x) => Tensor::of::<F16>(x, &self.shape),
            Values::Bf16(x) => Tensor::of::<Bf16>(x, &self.shape),
            Values::E4m3(x) => Tensor::of::<E4m3>(x, &self.shape),
            Values::E5m2(x) => Tensor::of::<E5m2>(x, &self.shape),
            Values::I32(x) => Tensor::new(x, &self.shape),
            Values::I64(x) => Tensor::new(x, &self.shape),
            Values::I8(x) => Tensor::new(x, &self.shape),
            Values::U8(x) => Tensor::new(x, &self.shape),
        }
        .unwrap()
    }

    fn view_mut(&mut self) -> TensorMut<'_> {
        match &mut self.values {
            Values::F32(x) => TensorMut::new(x, &self.shape),
            Values::F16(x) => TensorMut::of::<F16>(x, &self.shape),
            Values::Bf16(x) => TensorMut::of::<Bf16>(x, &self.shape),
            Values::E4m3(x) => TensorMut::of::<E4m3>(x, &self.shape),
            Values::E5m2(x) => TensorMut::of::<E5m2>(x, &self.shape),
            Values::I32(x) => TensorMut::new(x, &self.shape),
            Values::I64(x) => TensorMut::new(x, &self.shape),
            Values::I8(x) => TensorMut::new(x, &self.shape),
            Values::U8(x) => TensorMut::new(x, &self.shape),
        }
        .unwrap()
    }
}

impl Values {
    fn read(dtype: &str, bytes: &[u8]) -> Values {
        let halves =
            || bytes.chunks_exact(2).map(|b| u16::from_le_bytes(b.try_into().unwrap())).collect();
        let words = || bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
        match dtype {
            "F32" => Values::F32(words().map(f32::from_bits).collect()),
            "F16" => Values::F16(halves()),
            "BF16" => Values::Bf16(halves()),
            "F8_E4M3" => Values::E4m3(bytes.to_vec()),
            "F8_E5M2" => Values::E5m2(bytes.to_vec()),
            "I64" => Values::I64(
                bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect(),
            ),
            "I32" => Values::I32(words().map(|bits| bits as i32).collect()),
            "I8" => Values::I8(bytes.iter().map(|&byte| byte as i8).collect()),
            "U8" => Values::U8(bytes.to_vec()),
            other => panic!("dtype {other}"),
        }
    }

    /// NaN wherever the format has one: what is not written shows.
    fn poison(&mut self) {
        match self {
            Values::F32(x) => x.fill(f32::NAN),
            Values::F16(x) | Values::Bf16(x) => x.fill(0x7fff),
            Values::E4m3(x) | Values::E5m2(x) => x.fill(0x7f),
            Values::I32(x) => x.fill(i32::MIN),
            Values::I64(x) => x.fill(i64::MIN),
            Values::I8(x) => x.fill(i8::MIN),
            Values::U8(x) => x.fill(0xa5),
        }
    }

    fn numbers(&self) -> Vec<f64> {
        match self {
            Values::F32(x) => x.iter().map(|&v| v as f64).collect(),
            Values::F16(x) => x.iter().map(|&v| small_float(v as u32, 5, 10, true)).collect(),
            Values::Bf16(x) => x.iter().map(|&v| f32::from_bits((v as u32) << 16) as f64).collect(),
            Values::E4m3(x) => x.iter().map(|&v| small_float(v as u32, 4, 3, false)).collect(),
            Values::E5m2(x) => x.iter().map(|&v| small_float(v as u32, 5, 2, true)).collect(),
            Values::I32(x) => x.iter().map(|&v| v as f64).collect(),
            Values::I64(x) => x.iter().map(|&v| v as f64).collect(),
            Values::I8(x) => x.iter().map(|&v| v as f64).collect(),
            Values::U8(x) => x.iter().map(|&v| v as f64).collect(),
        }
    }
}

/// A float of few bits.  Without infinities (e4m3) only all ones is NaN.
fn small_float(bits: u32, exponent_bits: u32, mantissa_bits: u32, infinities: bool) -> f64 {
    let mantissa = bits & ((1 << mantissa_bits) - 1);
    let top = (1 << exponent_bits) - 1;
    let exponent = (bits >> mantissa_bits) & top;
    let sign = if bits >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let bias = (top >> 1) as i32;
    let fraction = mantissa as f64 / (1u32 << mantissa_bits) as f64;
    if exponent == top && infinities {
        return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
    }
    if exponent == top && mantissa == (1 << mantissa_bits) - 1 {
        return f64::NAN;
    }
    match exponent {
        0 => sign * fraction * 2f64.powi(1 - bias),
        _ => sign * (1.0 + fraction) * 2f64.powi(exponent as i32 - bias),
    }
}

#[test]
fn small_floats() {
    assert_eq!(small_float(0x3c00, 5, 10, true), 1.0);
    assert_eq!(small_float(0xfbff, 5, 10, true), -65504.0);
    assert_eq!(small_float(0x0001, 5, 10, true), 2f64.powi(-24));
    assert_eq!(small_float(0x7e, 4, 3, false), 448.0);
    assert!(small_float(0x7f, 4, 3, false).is_nan());
    assert_eq!(small_float(0xfc, 5, 2, true), f64::NEG_INFINITY);
}
