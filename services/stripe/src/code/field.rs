//! Arithmetic in GF(2^8) with polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d) and generator 2: the field of Q.
//!
//! Single elements only, computed bit by bit: a stripe needs a handful of them. Multiplying whole shards is left
//! to the kernels, which take a [`Multiplier`].
//!
//! Source: H. Peter Anvin, "The mathematics of RAID-6", which md and btrfs follow.

/// What x^8 is, reduced: the polynomial without its highest term.
pub(super) const REDUCTION: u8 = 0x1d;

/// Product of two elements.
pub(super) const fn multiply(a: u8, b: u8) -> u8 {
    let (mut product, mut shifted, mut bit) = (0, a, 0);
    while bit < 8 {
        if b >> bit & 1 == 1 {
            product ^= shifted;
        }
        shifted = double(shifted);
        bit += 1;
    }
    product
}

/// Twice an element, that is, the element times the generator.
const fn double(a: u8) -> u8 {
    let carry = if a >> 7 == 1 { REDUCTION } else { 0 };
    (a << 1) ^ carry
}

/// The generator to a power.
pub(super) const fn power(exponent: usize) -> u8 {
    let (mut result, mut step) = (1, 0);
    while step < exponent {
        result = double(result);
        step += 1;
    }
    result
}

/// The element whose product with `a` is 1. Panics on 0, which has none.
pub(super) const fn inverse(a: u8) -> u8 {
    assert!(a != 0, "0 has no inverse");
    // Elements other than 0 form a group of order 255, so a^-1 = a^254 = a^2 a^4 ... a^128.
    let (mut result, mut square, mut step) = (1, a, 0);
    while step < 7 {
        square = multiply(square, square);
        result = multiply(result, square);
        step += 1;
    }
    result
}

/// Multiplication by one constant, as two tables: products of the low and of the high half of a byte. They are 16
/// bytes each because that is what one shuffle instruction looks up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multiplier {
    /// Product of the constant and n, at n.
    pub(super) low: [u8; 16],
    /// Product of the constant and 16 n, at n.
    pub(super) high: [u8; 16],
}

impl Multiplier {
    /// Multiplication by `constant`.
    pub(super) const fn new(constant: u8) -> Self {
        let (mut low, mut high, mut half) = ([0; 16], [0; 16], 0);
        while half < 16 {
            low[half as usize] = multiply(constant, half);
            high[half as usize] = multiply(constant, half << 4);
            half += 1;
        }
        Multiplier { low, high }
    }
}
