//! Plans against an oracle that tries every way there is, and against bytes: what a plan reads is enough for the parity.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{Profile, SECTOR_BYTES, code::Codec};

fn geometry(profile: &str, unit_sectors: usize) -> Geometry {
    let profile: Profile = profile.parse().unwrap();
    let unit_bytes = (unit_sectors * SECTOR_BYTES) as u32;
    Geometry::new(profile, unit_bytes, u64::from(unit_bytes)).unwrap()
}

fn bits(length: usize, ones: &[usize]) -> Bits {
    let mut bits = Bits::new(length);
    ones.iter().for_each(|index| bits.set(*index, true));
    bits
}

fn contents() -> impl Strategy<Value = Content> {
    prop_oneof![Just(Content::Known), Just(Content::Agreed), Just(Content::Unsure)]
}

/// A profile, sectors of a unit, which sectors are written, what is known of each.
fn writes() -> impl Strategy<Value = (Geometry, Bits, Vec<Content>)> {
    let profiles = prop_oneof![
        Just("raid5-2+1"),
        Just("raid5-4+1"),
        Just("raid5-8+1"),
        Just("raid6-4+2"),
        Just("raid6-8+2"),
        Just("rs-4+3"),
        Just("mirror2"),
    ];
    (profiles, prop_oneof![Just(1_usize), Just(2), Just(4)]).prop_flat_map(|(profile, unit_sectors)| {
        let geometry = geometry(profile, unit_sectors);
        let sectors = geometry.stripe_sectors();
        (vec(any::<bool>(), sectors), vec(contents(), sectors), 0..sectors).prop_map(
            move |(covered, contents, always)| {
                let mut bits = Bits::new(sectors);
                covered.iter().enumerate().for_each(|(sector, covered)| bits.set(sector, *covered));
                bits.set(always, true);
                (geometry, bits, contents)
            },
        )
    })
}

/// Sectors of one vertical that have to be read, tried by every choice of what to read: the fewest with which its parity
/// can be known.
fn fewest(geometry: &Geometry, covered: &Bits, contents: &[Content], vertical: usize) -> usize {
    let (k, m) = (geometry.profile().data_shards(), geometry.profile().parity_shards());
    let at = |shard: usize| shard * geometry.unit_sectors() + vertical;
    let mut fewest = usize::MAX;
    for choice in 0_u32..1 << (k + 1) {
        let has_parity = choice >> k & 1 == 1;
        let known = |shard: usize| choice >> shard & 1 == 1 || contents[at(shard)] == Content::Known;
        let all = (0..k).all(|shard| covered.get(at(shard)) || known(shard));
        let agrees = (0..k).all(|shard| contents[at(shard)] != Content::Unsure);
        let changed = (0..k).filter(|shard| covered.get(at(*shard)));
        let delta = has_parity && agrees && changed.into_iter().all(known);
        if all || delta {
            let read = (choice & ((1 << k) - 1)).count_ones() as usize + if has_parity { m } else { 0 };
            fewest = fewest.min(read);
        }
    }
    fewest
}

proptest! {
    #[test]
    fn no_way_reads_less((geometry, covered, contents) in writes()) {
        let plan = plan(&geometry, &covered, |sector| contents[sector], Reading::Needed);
        let unit_sectors = geometry.unit_sectors();
        for vertical in 0..unit_sectors {
            let sectors = (0..geometry.profile().data_shards()).map(|shard| shard * unit_sectors + vertical);
            let sectors: Vec<usize> = sectors.collect();
            let touched = sectors.iter().any(|sector| covered.get(*sector));
            prop_assert_eq!(plan.touched.get(vertical), touched);
            let read = sectors.iter().filter(|sector| plan.read.get(**sector)).count()
                + if plan.read_parity.get(vertical) { geometry.profile().parity_shards() } else { 0 };
            let least = if touched { fewest(&geometry, &covered, &contents, vertical) } else { 0 };
            prop_assert_eq!(read, least, "vertical {}", vertical);
        }
    }

    /// With small numbers for sectors, and a parity that is computed by the real code from what the plan says.
    #[test]
    fn what_is_read_is_enough(
        (geometry, covered, contents) in writes(),
        old in vec(any::<u8>(), 64),
        new in vec(any::<u8>(), 64),
    ) {
        const BLOCK: usize = 64;
        let plan = plan(&geometry, &covered, |sector| contents[sector], Reading::Needed);
        let (k, m) = (geometry.profile().data_shards(), geometry.profile().parity_shards());
        let codec = Codec::new(geometry.profile());
        let encode = |data: &[Vec<u8>]| {
            let mut parity = vec![vec![0; BLOCK]; m];
            let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            codec.encode(&sources, &mut targets);
            parity
        };
        for vertical in plan.touched.iter_ones() {
            let at = |shard: usize| shard * geometry.unit_sectors() + vertical;
            let block = |bytes: &[u8], sector: usize| vec![bytes[sector % bytes.len()]; BLOCK];
            // On the members. A sector that nobody vouches for is not what the parity was computed from.
            let disk: Vec<Vec<u8>> = (0..k).map(|shard| block(&old, at(shard))).collect();
            let mut folded = disk.clone();
            for shard in (0..k).filter(|shard| contents[at(*shard)] == Content::Unsure) {
                folded[shard][0] ^= 0x5a;
            }
            let old_parity = encode(&folded);
            let after = |shard: usize| if covered.get(at(shard)) { block(&new, at(shard)) } else { disk[shard].clone() };
            let wanted = encode(&(0..k).map(after).collect::<Vec<_>>());
            // What the plan gives.
            let reached = |shard: usize| plan.read.get(at(shard)) || contents[at(shard)] == Content::Known;
            let computed = if plan.delta.get(vertical) {
                let difference = |shard: usize| {
                    if !covered.get(at(shard)) {
                        return vec![0; BLOCK];
                    }
                    assert!(reached(shard), "old bytes below the write");
                    after(shard).iter().zip(&disk[shard]).map(|(new, old)| new ^ old).collect()
                };
                let mut parity = encode(&(0..k).map(difference).collect::<Vec<_>>());
                assert!(plan.read_parity.get(vertical));
                for (parity, old) in parity.iter_mut().zip(&old_parity) {
                    parity.iter_mut().zip(old).for_each(|(byte, old)| *byte ^= old);
                }
                parity
            } else {
                assert!((0..k).all(|shard| covered.get(at(shard)) || reached(shard)), "neighbours");
                wanted.clone()
            };
            prop_assert_eq!(computed, wanted);
        }
    }

    #[test]
    fn the_whole_is_read_only_when_something_is((geometry, covered, contents) in writes()) {
        let needed = plan(&geometry, &covered, |sector| contents[sector], Reading::Needed);
        let whole = plan(&geometry, &covered, |sector| contents[sector], Reading::Whole);
        prop_assert_eq!(needed.reads(), whole.reads());
        if whole.reads() {
            let shards = geometry.profile().shards() * geometry.unit_sectors();
            prop_assert_eq!((whole.kind, whole.sectors_read(&geometry)), (Kind::Whole, shards));
        } else {
            prop_assert_eq!(needed, whole);
        }
    }
}

#[test]
fn the_cheaper_way_is_taken() {
    let raid5 = geometry("raid5-4+1", 2);
    let one = bits(8, &[0]);
    let all = |content: Content| move |_: usize| content;
    // Three neighbours, or what is below and one parity.
    let found = plan(&raid5, &one, all(Content::Agreed), Reading::Needed);
    assert_eq!((found.kind, found.sectors_read(&raid5)), (Kind::Delta, 2));
    let found = plan(&raid5, &one, all(Content::Unsure), Reading::Needed);
    assert_eq!((found.kind, found.read.clone()), (Kind::Reconstruct, bits(8, &[2, 4, 6])));
    let found = plan(&raid5, &one, all(Content::Known), Reading::Needed);
    assert_eq!((found.kind, found.reads()), (Kind::Pages, false));
    // Never written below: the parity alone.
    let below = |sector: usize| if sector == 0 { Content::Known } else { Content::Agreed };
    assert_eq!(plan(&raid5, &one, below, Reading::Needed).sectors_read(&raid5), 1);
    let full = plan(&raid5, &Bits::ones(8), all(Content::Unsure), Reading::Whole);
    assert_eq!((full.kind, full.reads()), (Kind::Full, false));
}
