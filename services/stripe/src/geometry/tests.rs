//! The geometry against a slow one that walks a chunk sector by sector; inverses, wrap-around at 2^32, and the
//! edges of chunks, for all profiles and units.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, sample::select};

use super::*;

const SECTOR: u64 = SECTOR_BYTES as u64;
const GIB: u64 = 1024 * 1024 * 1024;

fn profiles() -> Vec<Profile> {
    let raid5 = (1..=16).map(|data| format!("raid5-{data}+1"));
    let raid6 = (1..=16).map(|data| format!("raid6-{data}+2"));
    let rs = (1..=16).flat_map(|data| (3..=8).map(move |parity| format!("rs-{data}+{parity}")));
    let fixed = ["single", "dup", "mirror2", "mirror3"].into_iter().map(str::to_owned);
    fixed.chain(raid5).chain(raid6).chain(rs).map(|name| name.parse().unwrap()).collect()
}

fn units() -> impl Iterator<Item = u32> {
    (12..=20).map(|power| 1 << power)
}

/// Any geometry: slices from one unit to the largest there may be.
fn geometry() -> impl Strategy<Value = Geometry> {
    (select(profiles()), select(units().collect::<Vec<_>>()), any::<u32>()).prop_map(
        |(profile, unit, rows)| {
            let rows_max = SLICE_BYTES_MAX / u64::from(unit);
            // Short, of any length, and longest slices in equal parts.
            let rows =
                [1 + u64::from(rows) % 40, 1 + u64::from(rows) % rows_max, rows_max][rows as usize % 3];
            Geometry::new(profile, unit, rows * u64::from(unit)).unwrap()
        },
    )
}

/// A geometry and a row in it.
fn row() -> impl Strategy<Value = (Geometry, Row)> {
    geometry().prop_flat_map(|geometry| (Just(geometry), (0..geometry.rows()).prop_map(Row)))
}

/// What [`Geometry::place`] has to say, counted out.
fn walk(geometry: &Geometry, chunk: ChunkIndex, mut visit: impl FnMut(Place)) {
    for row in (0..geometry.rows()).map(Row) {
        for shard in (0..geometry.profile().data_shards()).map(|shard| Shard(shard as u8)) {
            for sector in 0..geometry.unit_sectors() as u32 {
                visit(Place { stripe: StripeAddress { chunk, row }, shard, sector, byte: 0 });
            }
        }
    }
}

fn check_inverse(geometry: &Geometry, logical: u64) {
    let place = geometry.place(Logical(logical));
    assert_eq!(geometry.logical(place), Logical(logical), "{geometry:?} {place:?}");
    assert!(place.stripe.row.0 < geometry.rows());
    assert!(usize::from(place.shard.0) < geometry.profile().data_shards());
    assert!((place.sector as usize) < geometry.unit_sectors());
    assert!((place.byte as usize) < SECTOR_BYTES);
}

proptest! {
    #[test]
    fn an_address_is_the_address_of_its_place(geometry in geometry(), logical in any::<u64>()) {
        check_inverse(&geometry, logical);
        check_inverse(&geometry, logical >> 20);
    }

    #[test]
    fn a_place_is_the_place_of_its_address(
        (geometry, row) in row(), chunk in 0..1_u64 << 20, shard in any::<u8>(), offset in any::<u32>()
    ) {
        let place = Place {
            stripe: StripeAddress { chunk: ChunkIndex(chunk), row },
            shard: Shard(shard % geometry.profile().data_shards() as u8),
            sector: offset / SECTOR_BYTES as u32 % geometry.unit_sectors() as u32,
            byte: offset % SECTOR_BYTES as u32,
        };
        prop_assert_eq!(geometry.place(geometry.logical(place)), place);
    }

    #[test]
    fn addresses_around_32_bits_and_around_chunks_do_not_wrap(geometry in geometry(), chunk in 0..1_u64 << 20) {
        for boundary in [1 << 31, 1 << 32, 1 << 33, (chunk + 1) * geometry.chunk_bytes()] {
            for logical in [boundary - SECTOR, boundary - 1, boundary, boundary + 1, boundary + SECTOR] {
                check_inverse(&geometry, logical);
            }
        }
    }

    #[test]
    fn neighbours_lie_next_to_each_other(geometry in geometry(), logical in 0..u64::MAX - 1) {
        let [here, next] = [logical, logical + 1].map(|logical| geometry.place(Logical(logical)));
        let mut expected = Place { byte: here.byte + 1, ..here };
        if expected.byte == SECTOR_BYTES as u32 {
            (expected.byte, expected.sector) = (0, here.sector + 1);
        }
        if expected.sector == geometry.unit_sectors() as u32 {
            (expected.sector, expected.shard) = (0, Shard(here.shard.0 + 1));
        }
        if usize::from(expected.shard.0) == geometry.profile().data_shards() {
            (expected.shard, expected.stripe.row) = (Shard(0), Row(here.stripe.row.0 + 1));
        }
        if expected.stripe.row.0 == geometry.rows() {
            let chunk = ChunkIndex(here.stripe.chunk.0 + 1);
            expected.stripe = StripeAddress { chunk, row: Row(0) };
        }
        prop_assert_eq!(next, expected);
    }

    #[test]
    fn shards_and_slices_of_a_row_correspond((geometry, row) in row()) {
        let shards = geometry.profile().shards();
        let slices: BTreeSet<usize> = (0..shards)
            .map(|shard| {
                let slice = geometry.slice_of(row, Shard(shard as u8));
                assert_eq!(geometry.shard_of(row, slice), Shard(shard as u8));
                slice
            })
            .collect();
        prop_assert_eq!(slices, (0..shards).collect::<BTreeSet<_>>());
    }

    #[test]
    fn every_shard_visits_every_slice_once_in_n_rows((geometry, first) in row()) {
        let shards = geometry.profile().shards() as u32;
        prop_assume!(first.0 + shards <= geometry.rows());
        for shard in 0..shards {
            let rows = (first.0..first.0 + shards).map(Row);
            let slices: BTreeSet<usize> = rows.map(|row| geometry.slice_of(row, Shard(shard as u8))).collect();
            prop_assert_eq!(slices.len(), shards as usize);
        }
    }

    #[test]
    fn units_of_a_disk_do_not_overlap((geometry, row) in row(), slice in 0..1_u64 << 20) {
        let unit = geometry.unit(slice, row);
        prop_assert_eq!(unit / u64::from(geometry.rows()), slice);
        prop_assert_eq!(unit % u64::from(geometry.rows()), u64::from(row.0));
    }
}

#[test]
fn every_sector_of_a_chunk_has_one_place_and_every_place_one_sector() {
    for profile in profiles() {
        for (unit, rows) in [(4096, 40), (8192, 19), (65536, 3)] {
            let geometry = Geometry::new(profile, unit, u64::from(unit) * rows).unwrap();
            let chunk = ChunkIndex(3);
            let start = 3 * geometry.chunk_bytes();
            let (mut logical, mut used) = (start, BTreeMap::<(usize, u64), usize>::new());
            walk(&geometry, chunk, |place| {
                assert_eq!(geometry.place(Logical(logical)), place, "{geometry:?}");
                let slice = geometry.slice_of(place.stripe.row, place.shard);
                *used.entry((slice, geometry.unit(0, place.stripe.row))).or_default() += 1;
                logical += SECTOR;
            });
            assert_eq!(logical, start + geometry.chunk_bytes());
            assert!(used.values().all(|sectors| *sectors == geometry.unit_sectors()), "{geometry:?}");
            // What data does not use, parity does: the rest of every row, on slices of their own.
            let parity = profile.parity_shards() * rows as usize;
            assert_eq!(used.len() + parity, profile.shards() * rows as usize, "{geometry:?}");
        }
    }
}

#[test]
fn parity_is_spread_evenly() {
    for profile in profiles() {
        let rows = 5 * profile.shards() as u64;
        let geometry = Geometry::new(profile, 4096, 4096 * rows).unwrap();
        let mut parities = vec![0; profile.shards()];
        for row in (0..geometry.rows()).map(Row) {
            for shard in profile.data_shards()..profile.shards() {
                parities[geometry.slice_of(row, Shard(shard as u8))] += 1;
            }
        }
        assert_eq!(parities, vec![5 * profile.parity_shards(); profile.shards()], "{profile}");
    }
}

#[test]
fn the_largest_chunk_ends_where_it_should() {
    for unit in units() {
        let profile = "raid6-16+2".parse().unwrap();
        let geometry = Geometry::new(profile, unit, SLICE_BYTES_MAX).unwrap();
        assert_eq!(geometry.chunk_bytes(), 1024 * GIB);
        let row = Row(geometry.rows() - 1);
        assert_eq!(u64::from(row.0) + 1, 64 * GIB / u64::from(unit));
        let last = geometry.place(Logical(1024 * GIB - 1));
        let stripe = StripeAddress { chunk: ChunkIndex(0), row };
        let sector = unit / SECTOR_BYTES as u32 - 1;
        assert_eq!(last, Place { stripe, shard: Shard(15), sector, byte: 4095 });
        assert_eq!(geometry.stripe_start(stripe), Logical(1024 * GIB - 16 * u64::from(unit)));
        let next = geometry.place(Logical(1024 * GIB));
        assert_eq!(next.stripe, StripeAddress { chunk: ChunkIndex(1), row: Row(0) });
        // As many units as the disk has, and not 2^32 fewer.
        assert_eq!(geometry.unit(1 << 20, row), ((1 << 20) + 1) * u64::from(geometry.rows()) - 1);
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let new = |unit, slice| Geometry::new("raid5-4+1".parse().unwrap(), unit, slice);
    for unit in [0, 1, 2048, 4095, 12288, 2 * 1024 * 1024, 1 << 31] {
        assert_eq!(new(unit, 12 * GIB), Err(GeometryError::Unit(unit)));
    }
    for unit in units() {
        assert!(new(unit, u64::from(unit)).is_ok());
        assert!(new(unit, SLICE_BYTES_MAX).is_ok());
        for slice in [0, u64::from(unit) - 1, u64::from(unit) + SECTOR / 2, SLICE_BYTES_MAX + u64::from(unit)]
        {
            assert_eq!(new(unit, slice), Err(GeometryError::Slice { slice, unit }));
        }
    }
}

#[test]
fn sums_of_lengths_agree() {
    for profile in profiles() {
        for unit in units() {
            let geometry = Geometry::new(profile, unit, 64 * 1024 * 1024).unwrap();
            assert_eq!(geometry.stripe_bytes(), geometry.stripe_sectors() as u64 * SECTOR);
            assert_eq!(geometry.chunk_bytes(), geometry.slice_bytes() * profile.data_shards() as u64);
            assert_eq!(geometry.unit_bytes(), geometry.unit_sectors() * SECTOR_BYTES);
        }
    }
}
