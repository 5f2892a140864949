//! A mix of everything that writes and frees, decided by a seed, on several stripes at once.

use futures_util::future::join_all;
use stripeset_sim::dice::Dice;
use stripeset_stripe::{
    cache::{Granularity, Mode},
    plan::Reading,
};

use crate::stage::{At, Tested};

/// One step of the mix. All writes in it go well.
pub(crate) async fn step(stripes: &[Tested<'_>], dice: &mut Dice) {
    let tested = dice.pick(stripes).unwrap();
    match dice.below(12) {
        0 => whole(tested).await,
        1 => start_again(tested, dice).await,
        2 | 3 => free_some(tested, dice),
        4 => tested.uncache(),
        5..=7 => together(stripes, dice).await,
        _ => {
            let sectors = some_sectors(tested, dice);
            tested.write(&sectors).await.unwrap();
        }
    }
}

/// Changes how the cache and the reads of writes work.
pub(crate) fn change_rules(tested: &Tested<'_>, dice: &mut Dice) {
    let modes = [Mode::Drop, Mode::Stock, Mode::Mark, Mode::Off];
    let mode = *dice.pick(&modes).unwrap();
    let granularity = *dice.pick(&[Granularity::Sector, Granularity::Whole]).unwrap();
    tested.engine().cache().set_mode(mode, granularity);
    tested.engine().set_reading(*dice.pick(&[Reading::Needed, Reading::Whole]).unwrap());
    let capacity = *dice.pick(&[40 * 1024, 100 * 1024, 1 << 20]).unwrap();
    tested.engine().cache().set_capacity(capacity);
}

/// Takes sectors that are free, and names others to write with them.
pub(crate) fn some_sectors(tested: &Tested<'_>, dice: &mut Dice) -> Vec<At> {
    let all = tested.all();
    let first = dice.below(all.len() as u64) as usize;
    let end = (first + dice.between(1, 4) as usize).min(all.len());
    let mut sectors = all[first..end].to_vec();
    sectors.extend(dice.pick(&all));
    for at in &sectors {
        if !tested.is_live(*at) {
            tested.take(*at);
        }
    }
    sectors
}

async fn whole(tested: &Tested<'_>) {
    tested.all().into_iter().filter(|at| !tested.is_live(*at)).for_each(|at| tested.take(at));
    tested.write(&tested.all()).await.unwrap();
}

/// Frees all of a stripe and writes into it as into an empty one.
async fn start_again(tested: &Tested<'_>, dice: &mut Dice) {
    tested.all().into_iter().filter(|at| tested.is_live(*at)).for_each(|at| tested.free(at));
    tested.all().into_iter().for_each(|at| tested.take(at));
    tested.write_fresh(dice.between(1, tested.unit_sectors() as u64) as usize).await.unwrap();
}

fn free_some(tested: &Tested<'_>, dice: &mut Dice) {
    for at in tested.all() {
        if dice.of_thousand(200) && tested.is_live(at) {
            tested.free(at);
        }
    }
}

/// Several writes at once, to one stripe and to others.
async fn together(stripes: &[Tested<'_>], dice: &mut Dice) {
    let mut writes = Vec::new();
    for _ in 0..dice.between(2, 8) {
        let tested = dice.pick(stripes).unwrap();
        let edits = tested.edits(&some_sectors(tested, dice));
        writes.push(async move { tested.engine().write_partial(&tested.stripe, edits).await });
    }
    for written in join_all(writes).await {
        written.unwrap();
    }
}
