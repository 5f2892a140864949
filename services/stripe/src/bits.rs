//! A row of bits of fixed length, one for each sector: written, valid, bad, live. On wire and disk it is bytes, least
//! significant bit first.

/// A row of bits. Invariant: bits past the length are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    bytes: Vec<u8>,
    length: usize,
}

impl Bits {
    /// All zero.
    pub fn new(length: usize) -> Self {
        Bits { bytes: vec![0; length.div_ceil(8)], length }
    }

    /// All one.
    pub fn ones(length: usize) -> Self {
        let mut bits = Bits::new(length);
        (0..length).for_each(|index| bits.set(index, true));
        bits
    }

    /// From bytes; `None` if there are not exactly as many as the length needs, or a bit past it is set.
    pub fn from_bytes(bytes: &[u8], length: usize) -> Option<Self> {
        let spare = length.div_ceil(8) * 8 - length;
        let fits = bytes.len() == length.div_ceil(8)
            && bytes.last().is_none_or(|last| u32::from(*last).leading_zeros() as usize >= 24 + spare);
        fits.then(|| Bits { bytes: bytes.to_vec(), length })
    }

    /// As bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of bits.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bits at all.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// One bit. Panics past the length.
    pub fn get(&self, index: usize) -> bool {
        assert!(index < self.length, "bit {index} of {}", self.length);
        self.bytes[index / 8] >> (index % 8) & 1 == 1
    }

    /// Sets one bit. Panics past the length.
    pub fn set(&mut self, index: usize, value: bool) {
        assert!(index < self.length, "bit {index} of {}", self.length);
        let mask = 1 << (index % 8);
        if value { self.bytes[index / 8] |= mask } else { self.bytes[index / 8] &= !mask }
    }

    /// Number of ones.
    pub fn count(&self) -> usize {
        self.bytes.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Whether no bit is one.
    pub fn none(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == 0)
    }

    /// Whether every bit is one.
    pub fn all(&self) -> bool {
        self.count() == self.length
    }

    /// Indices of the ones, ascending.
    pub fn iter_ones(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.length).filter(|index| self.get(*index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_least_significant_first() {
        let mut bits = Bits::new(10);
        bits.set(0, true);
        bits.set(9, true);
        assert_eq!(bits.as_bytes(), [1, 2]);
        assert_eq!(bits.iter_ones().collect::<Vec<_>>(), [0, 9]);
        assert_eq!(Bits::from_bytes(&[1, 2], 10), Some(bits));
    }

    #[test]
    fn bytes_that_do_not_fit_are_refused() {
        assert_eq!(Bits::from_bytes(&[0], 10), None);
        assert_eq!(Bits::from_bytes(&[0, 0, 0], 10), None);
        assert_eq!(Bits::from_bytes(&[0, 4], 10), None);
        assert_eq!(Bits::from_bytes(&[0xff], 8), Some(Bits::ones(8)));
        assert_eq!(Bits::from_bytes(&[], 0), Some(Bits::new(0)));
    }
}
