//! Profiles: how many data and parity shards a stripe has, and which code joins them.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// Most data shards in a stripe.
pub const DATA_SHARDS_MAX: u8 = 16;

/// Most parity shards in a stripe.
pub const PARITY_SHARDS_MAX: u8 = 8;

/// How parity follows from data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// No parity.
    None,
    /// Every parity shard is a copy of the one data shard.
    Copy,
    /// P: the exclusive or of all data shards.
    Xor,
    /// P and Q: Q is the Reed-Solomon syndrome over GF(2^8), polynomial 0x11d, generator 2.
    PQ,
    /// Three or more parities as the crate `reed-solomon-simd` computes them.
    ReedSolomon,
}

/// The family of a profile, as it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Family {
    Single,
    Dup,
    Mirror2,
    Mirror3,
    Raid5,
    Raid6,
    Rs,
}

/// A profile with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Profile {
    family: Family,
    data: u8,
    parity: u8,
}

/// A profile as people write it: the numbers of `raid5` and `raid6` may still depend on the number of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileSpec {
    family: Family,
    numbers: Option<(u8, u8)>,
}

/// Why a word is no profile.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ProfileError {
    /// The word is not one of the profiles.
    #[error(
        "unknown profile {0:?}: use single, dup, mirror2, mirror3, raid5, raid6, raid5-K+1, raid6-K+2 or rs-K+M"
    )]
    UnknownName(String),
    /// Data or parity count outside what the family allows.
    #[error(
        "profile {name:?} with {data} data and {parity} parity shards: data shards go from 1 to 16, parity shards are \
         1 for raid5, 2 for raid6, 3 to 8 for rs"
    )]
    OutOfRange {
        /// As it was written.
        name: String,
        /// Data shards asked for.
        data: u8,
        /// Parity shards asked for.
        parity: u8,
    },
    /// The profile needs more members than there are.
    #[error("profile {profile} needs {needed} members, there are {members}")]
    TooFewMembers {
        /// The profile.
        profile: String,
        /// Members that it needs.
        needed: usize,
        /// Members that there are.
        members: usize,
    },
}

impl Profile {
    /// Number of data shards, k.
    pub fn data_shards(self) -> usize {
        usize::from(self.data)
    }

    /// Number of parity shards, m; for mirrors and `dup`, of further copies.
    pub fn parity_shards(self) -> usize {
        usize::from(self.parity)
    }

    /// Number of shards in all, n.
    pub fn shards(self) -> usize {
        self.data_shards() + self.parity_shards()
    }

    /// The code.
    pub fn code(self) -> Code {
        match self.family {
            Family::Single => Code::None,
            Family::Dup | Family::Mirror2 | Family::Mirror3 => Code::Copy,
            Family::Raid5 => Code::Xor,
            Family::Raid6 => Code::PQ,
            Family::Rs => Code::ReedSolomon,
        }
    }

    /// Members that a chunk takes slices from: n, but one for `dup`.
    pub fn members(self) -> usize {
        if self.family == Family::Dup { 1 } else { self.shards() }
    }

    /// Lost members that the profile bears.
    pub fn tolerated_members(self) -> usize {
        if self.family == Family::Dup { 0 } else { self.parity_shards() }
    }

    /// Whether shard `shard` carries a stripe summary: parity shards do, and every copy of a mirror or `dup`.
    pub fn has_summary(self, shard: usize) -> bool {
        self.parity > 0 && (shard >= self.data_shards() || self.code() == Code::Copy)
    }
}

impl ProfileSpec {
    /// The profile for an array of `members`. `raid5` and `raid6` without numbers take all of them, at most 16 for
    /// data.
    pub fn resolve(self, members: usize) -> Result<Profile, ProfileError> {
        let (data, parity) = match (self.family, self.numbers) {
            (_, Some(numbers)) => numbers,
            (Family::Single, None) => (1, 0),
            (Family::Dup | Family::Mirror2, None) => (1, 1),
            (Family::Mirror3, None) => (1, 2),
            (Family::Raid5 | Family::Raid6 | Family::Rs, None) => {
                let parity = if self.family == Family::Raid5 { 1 } else { 2 };
                let data = members.saturating_sub(parity).clamp(1, usize::from(DATA_SHARDS_MAX));
                (data as u8, parity as u8)
            }
        };
        let profile = Profile { family: self.family, data, parity };
        if profile.members() > members {
            let (profile, needed) = (profile.to_string(), profile.members());
            return Err(ProfileError::TooFewMembers { profile, needed, members });
        }
        Ok(profile)
    }
}

impl FromStr for ProfileSpec {
    type Err = ProfileError;

    fn from_str(word: &str) -> Result<Self, ProfileError> {
        let unknown = || ProfileError::UnknownName(word.to_owned());
        let (name, numbers) = match word.split_once('-') {
            None => (word, None),
            Some((name, numbers)) => {
                let (data, parity) = numbers.split_once('+').ok_or_else(unknown)?;
                let number = |digits: &str| digits.parse::<u8>().ok().ok_or_else(unknown);
                (name, Some((number(data)?, number(parity)?)))
            }
        };
        let (family, parities) = match (name, numbers.is_some()) {
            ("single", false) => (Family::Single, 0..=0),
            ("dup", false) => (Family::Dup, 1..=1),
            ("mirror2", false) => (Family::Mirror2, 1..=1),
            ("mirror3", false) => (Family::Mirror3, 2..=2),
            ("raid5", _) => (Family::Raid5, 1..=1),
            ("raid6", _) => (Family::Raid6, 2..=2),
            ("rs", true) => (Family::Rs, 3..=PARITY_SHARDS_MAX),
            _ => return Err(unknown()),
        };
        if let Some((data, parity)) = numbers
            && (!(1..=DATA_SHARDS_MAX).contains(&data) || !parities.contains(&parity))
        {
            return Err(ProfileError::OutOfRange { name: word.to_owned(), data, parity });
        }
        Ok(ProfileSpec { family, numbers })
    }
}

/// Parses a profile with its numbers, as [`Profile`]'s `Display` writes it.
impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(word: &str) -> Result<Self, ProfileError> {
        let spec: ProfileSpec = word.parse()?;
        if matches!(spec.family, Family::Raid5 | Family::Raid6) && spec.numbers.is_none() {
            return Err(ProfileError::UnknownName(word.to_owned()));
        }
        spec.resolve(usize::MAX)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family {
            Family::Single => f.write_str("single"),
            Family::Dup => f.write_str("dup"),
            Family::Mirror2 => f.write_str("mirror2"),
            Family::Mirror3 => f.write_str("mirror3"),
            Family::Raid5 => write!(f, "raid5-{}+{}", self.data, self.parity),
            Family::Raid6 => write!(f, "raid6-{}+{}", self.data, self.parity),
            Family::Rs => write!(f, "rs-{}+{}", self.data, self.parity),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(word: &str, members: usize) -> Result<String, ProfileError> {
        word.parse::<ProfileSpec>()?.resolve(members).map(|profile| profile.to_string())
    }

    #[test]
    fn raid_takes_all_members_unless_it_says_how_many() {
        assert_eq!(resolve("raid5", 5).unwrap(), "raid5-4+1");
        assert_eq!(resolve("raid6", 6).unwrap(), "raid6-4+2");
        assert_eq!(resolve("raid5", 40).unwrap(), "raid5-16+1");
        assert_eq!(resolve("raid6-4+2", 9).unwrap(), "raid6-4+2");
        assert_eq!(resolve("rs-8+3", 11).unwrap(), "rs-8+3");
        assert_eq!(resolve("dup", 1).unwrap(), "dup");
    }

    #[test]
    fn wrong_words_and_numbers_are_refused() {
        for word in
            ["", "raid", "raid7", "raid5-", "raid5-4", "raid5-4+", "single-1+0", "rs", "rs-4+x", "mirror4"]
        {
            assert!(matches!(resolve(word, 20), Err(ProfileError::UnknownName(_))), "{word}");
        }
        for word in ["raid5-4+2", "raid6-4+1", "raid5-0+1", "raid5-17+1", "rs-4+2", "rs-4+9"] {
            assert!(matches!(resolve(word, 40), Err(ProfileError::OutOfRange { .. })), "{word}");
        }
        for (word, members) in [("raid5", 1), ("raid6", 2), ("mirror2", 1), ("rs-8+3", 10), ("single", 0)] {
            assert!(matches!(resolve(word, members), Err(ProfileError::TooFewMembers { .. })), "{word}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for word in ["single", "dup", "mirror2", "mirror3", "raid5-4+1", "raid6-14+2", "rs-10+4"] {
            assert_eq!(word.parse::<Profile>().unwrap().to_string(), word);
        }
        assert!("raid5".parse::<Profile>().is_err());
    }
}
