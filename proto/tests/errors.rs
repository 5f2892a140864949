//! docs/ERRORS.md lists exactly the kinds of error that there are, each with its code and reason.

use stripeset_proto::{ErrorKind, error::KINDS};

/// The cells of the table's first three columns, one row per kind.
fn rows(page: &str) -> Vec<[&str; 3]> {
    page.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let mut cells = line.split('|').skip(1).map(str::trim);
            std::array::from_fn(|_| cells.next().unwrap_or_default())
        })
        .collect()
}

/// As gRPC writes a code: `ResourceExhausted` is `RESOURCE_EXHAUSTED`.
fn upper(name: &str) -> String {
    let letters = name.char_indices().flat_map(|(index, letter)| {
        let gap = (index > 0 && letter.is_uppercase()).then_some('_');
        gap.into_iter().chain(letter.to_uppercase())
    });
    letters.collect()
}

fn expected(kind: ErrorKind) -> [String; 3] {
    let code = kind.code();
    [
        format!("`{kind:?}`"),
        format!("`{}` ({})", upper(&format!("{code:?}")), i32::from(code)),
        format!("`{}`", kind.reason()),
    ]
}

#[test]
fn the_page_lists_every_kind_and_no_other() {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ERRORS.md"));
    let listed = rows(page);
    let expected: Vec<[String; 3]> = KINDS.into_iter().map(expected).collect();
    assert_eq!(listed.len(), expected.len(), "rows in docs/ERRORS.md");
    for (listed, expected) in listed.iter().zip(&expected) {
        assert_eq!(listed, expected, "docs/ERRORS.md");
    }
}

#[test]
fn the_page_says_for_which_kinds_a_retry_helps() {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ERRORS.md"));
    let sentence = page.split_once("Sending the same request again can help for").unwrap().1;
    let sentence = sentence.split_once(", and for no other kind").unwrap().0;
    for kind in KINDS {
        assert_eq!(sentence.contains(&format!("`{kind:?}`")), kind.retry_helps(), "{kind:?}");
    }
}
