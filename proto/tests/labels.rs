//! A label crosses the wire with all that it says.

use stripeset_proto::v1;
use stripeset_stripe::{
    Epoch, Version,
    geometry::{ChunkIndex, Row, StripeAddress},
    label::{Label, LabelMember, MemberSet, Out, Revision},
};
use uuid::Uuid;

#[test]
fn a_label_crosses_the_wire() {
    let epoch = Epoch { number: 3, incarnation: 4 };
    let out = Out {
        since: Version { epoch, sequence: 5 },
        cursor: StripeAddress { chunk: ChunkIndex(6), row: Row(7) },
        reason: "it was silent".to_owned(),
    };
    let member = |id, out| LabelMember { disk_id: Uuid::from_u128(id), address: format!("host-{id}:1"), out };
    let label = Label {
        array_id: Uuid::from_u128(1),
        revision: Revision { epoch, number: 2 },
        unit_bytes: 8,
        slice_bytes: 9,
        shards_max: 10,
        data_shards_max: 11,
        members: vec![member(12, None), member(13, Some(out))],
        may_follow: vec![MemberSet(0b11), MemberSet(0b10), MemberSet(1 << 127)],
    };
    let mut wire = v1::Label::from(label.clone());
    assert_eq!(Label::try_from(wire.clone()).unwrap(), label);
    assert_eq!(wire.may_follow[0].members, [0, 1]);
    wire.may_follow[0].members[1] = 128;
    assert!(Label::try_from(wire).is_err(), "no set has a bit for it");
    assert!(Label::try_from(v1::Label::default()).is_err());
}
