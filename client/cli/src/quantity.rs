//! Sizes and durations as people write and read them.

use std::time::Duration;

/// Units of sizes, largest first.
const SIZE_UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Units of durations in nanoseconds. `ms` stands before `m` and `s`, which it ends in or begins with.
const DURATION_UNITS: [(&str, u64); 4] =
    [("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000), ("h", 3_600_000_000_000)];

const UNIT_BYTES_MIN: u64 = 4 << 10;
const UNIT_BYTES_MAX: u64 = 1 << 20;

/// A size in bytes: `4096`, `64KiB`, `1.5GiB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: write bytes (4096) or use KiB, MiB, GiB or TiB (64KiB)");
    let (digits, unit) = SIZE_UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))
        .unwrap_or((text, 1));
    scaled(digits, unit).ok_or_else(wrong)
}

/// A duration: `250ms`, `5s`, `2m`, `1h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: use ms, s, m or h (250ms, 5s)");
    let (digits, unit) = DURATION_UNITS
        .iter()
        .find_map(|(unit, nanos)| Some((text.strip_suffix(unit)?, *nanos)))
        .ok_or_else(wrong)?;
    scaled(digits, unit).map(Duration::from_nanos).ok_or_else(wrong)
}

/// The length of a stripe unit.
pub(crate) fn unit(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    if !bytes.is_power_of_two() || !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&bytes) {
        return Err(format!("a stripe unit of {text} is not possible: use a power of two from 4KiB to 1MiB"));
    }
    u32::try_from(bytes).map_err(|error| error.to_string())
}

/// `digits`, which may have a decimal point, times `unit`; `None` unless that is a whole number that fits.
fn scaled(digits: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<u64>().ok(),
        false => None,
    };
    let places = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let parts = u128::from(number(fraction)?) * u128::from(unit);
    if !parts.is_multiple_of(places) {
        return None;
    }
    let parts = u64::try_from(parts / places).ok()?;
    number(whole)?.checked_mul(unit)?.checked_add(parts)
}

/// A size for people: three digits and a unit.
pub(crate) fn show_size(bytes: u64) -> String {
    match SIZE_UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        None => format!("{bytes} B"),
        Some((name, unit)) => {
            let value = bytes as f64 / *unit as f64;
            let places = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
            format!("{value:.places$} {name}")
        }
    }
}

/// A size as it can be given: the largest unit that divides it.
pub(crate) fn exact_size(bytes: u64) -> String {
    match SIZE_UNITS.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        None => bytes.to_string(),
        Some((name, unit)) => format!("{}{name}", bytes / unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_have_a_binary_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65536),
            ("1MiB", 1 << 20),
            ("1.5GiB", 3 << 29),
            ("0.5KiB", 512),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "KiB",
            "-1",
            "+1",
            "1KB",
            "1kib",
            "1 KiB",
            "1.KiB",
            ".5KiB",
            "0.3KiB",
            "1.5",
            "1e3",
            "99999999TiB",
        ] {
            assert!(size(text).unwrap_err().contains("is not a size"), "{text}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        for (text, millis) in
            [("250ms", 250), ("5s", 5000), ("1.5s", 1500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "ms", "5sec", "-1s", "1d", "5 s"] {
            assert!(duration(text).unwrap_err().contains("is not a duration"), "{text}");
        }
    }

    #[test]
    fn a_stripe_unit_is_a_power_of_two_in_its_range() {
        assert_eq!(unit("64KiB"), Ok(65536));
        assert_eq!(unit("4096"), Ok(4096));
        assert_eq!(unit("1MiB"), Ok(1 << 20));
        for text in ["0", "2KiB", "2MiB", "12KiB", "x"] {
            assert!(unit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_exact_size_is_read_back_as_itself() {
        for bytes in [0, 1, 1000, 1024, 4 << 30, (4 << 30) + 1024, u64::MAX] {
            assert_eq!(size(&exact_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn a_size_for_people_is_short() {
        assert_eq!(show_size(1023), "1023 B");
        assert_eq!(show_size(1536), "1.50 KiB");
        assert_eq!(show_size(10 << 20), "10.0 MiB");
        assert_eq!(show_size(150 << 30), "150 GiB");
    }
}
