//! The cache: a page is what the disks hold; of what was freed, and of a write that failed or whose outcome is open, there
//! is none.

use bytes::Bytes;
use stripeset_stripe::{cache::Pages, summary::Summary};

use super::Violation;

/// Pages are what the disks hold.
pub const EQUAL: &str = "a valid cached sector equals the disks";

/// Nothing freed is in the cache.
pub const FREED: &str = "nothing freed stays in the cache";

/// Nothing of a failed or uncertain write is.
pub const UNCERTAIN: &str = "a failed or uncertain write is not cached";

/// Compares the pages of a stripe with what its disks hold, `on_disk` by data sector: none for a sector that is bad, or on
/// a member that is out. Returns the number of pages compared.
pub fn check(pages: &Pages<Bytes>, on_disk: impl Fn(usize) -> Option<Vec<u8>>) -> Result<u64, Violation> {
    let mut compared = 0;
    for sector in pages.valid() {
        let (Some(page), Some(bytes)) = (pages.get(sector), on_disk(sector)) else { continue };
        if **page != *bytes {
            return Err(Violation::new(EQUAL, format!("the page of sector {sector} does not")));
        }
        compared += 1;
    }
    Ok(compared)
}

/// After sectors were freed. `changed` are those that changed on their disk right afterwards: no page can have their old
/// bytes, unless it is older than the free. `old` has those.
pub fn check_freed(
    pages: &Pages<Bytes>,
    freed: impl IntoIterator<Item = usize>,
    old: impl Fn(usize, &Bytes) -> bool,
) -> Result<(), Violation> {
    for sector in freed {
        if let Some(page) = pages.get(sector)
            && old(sector, page)
        {
            return Err(Violation::new(
                FREED,
                format!("sector {sector} was freed, and its page outlived that"),
            ));
        }
    }
    Ok(())
}

/// After a write failed, or its outcome stayed open. `wrote` says whether a page has its bytes.
pub fn check_failed(pages: &Pages<Bytes>, wrote: impl Fn(usize, &Bytes) -> bool) -> Result<(), Violation> {
    let of_it = pages.valid().find(|sector| pages.get(*sector).is_some_and(|page| wrote(*sector, page)));
    of_it.map_or(Ok(()), |sector| {
        Err(Violation::new(
            UNCERTAIN,
            format!("sector {sector} has the bytes of a write that was not acknowledged"),
        ))
    })
}

/// The summary that pages come with is the one of the parities.
pub fn check_summary(pages: &Pages<Bytes>, on_disk: &Summary) -> Result<(), Violation> {
    if pages.summary == *on_disk {
        return Ok(());
    }
    Err(Violation::new(EQUAL, "what it knows of the stripe is not what the parities know".to_owned()))
}

#[cfg(test)]
mod tests {
    use stripeset_stripe::{cache::Class, geometry::Geometry, profile::ProfileSpec};

    use super::*;

    fn pages() -> Pages<Bytes> {
        let profile = "raid5-2+1".parse::<ProfileSpec>().unwrap().resolve(16).unwrap();
        let geometry = Geometry::new(profile, 16384, 65536).unwrap();
        let mut pages = Pages::new(Class::Data, Summary::empty(&geometry));
        pages.set(3, Bytes::from_static(&[3; 4096]));
        pages
    }

    #[test]
    fn a_page_that_differs_is_seen() {
        assert_eq!(check(&pages(), |_| Some(vec![3; 4096])), Ok(1));
        assert_eq!(check(&pages(), |_| None), Ok(0));
        assert_eq!(check(&pages(), |_| Some(vec![4; 4096])).unwrap_err().invariant, EQUAL);
    }

    #[test]
    fn a_page_that_outlived_its_sector_is_seen() {
        assert_eq!(check_freed(&pages(), [2, 3], |_, page| page[0] == 7), Ok(()));
        assert_eq!(check_freed(&pages(), [2, 3], |_, page| page[0] == 3).unwrap_err().invariant, FREED);
    }

    #[test]
    fn bytes_of_a_failed_write_are_seen() {
        assert_eq!(check_failed(&pages(), |sector, _| sector == 2), Ok(()));
        assert_eq!(check_failed(&pages(), |sector, _| sector == 3).unwrap_err().invariant, UNCERTAIN);
    }

    #[test]
    fn another_summary_is_seen() {
        let mut other = pages().summary;
        assert_eq!(check_summary(&pages(), &other), Ok(()));
        other.write(5, 1);
        assert!(check_summary(&pages(), &other).is_err());
    }
}
