//! Which crate may use which: the rule of ARCHITECTURE.md, held against what cargo says.
//!
//! Only crates of this workspace count. What tests use is not looked at, except that crates made for tests are used by
//! tests alone. A new crate needs a row here, and one in ARCHITECTURE.md.

use std::{collections::BTreeMap, process::Command};

use serde::Deserialize;

const PREFIX: &str = "stripeset-";

/// Each crate and those it may use, without the prefix.
const MAY_USE: [(&str, &[&str]); 9] = [
    ("stripe", &[]),
    ("telemetry", &[]),
    ("proto", &["stripe"]),
    ("agent", &["proto", "stripe", "telemetry"]),
    ("coordinator", &["proto", "stripe", "telemetry"]),
    ("sim", &["agent", "coordinator", "proto", "stripe"]),
    ("client", &["proto"]),
    ("testing", &["agent", "coordinator", "proto", "telemetry"]),
    ("cli", &["agent", "client", "coordinator", "proto", "stripe", "telemetry"]),
];

/// Used by tests, never by what is shipped.
const FOR_TESTS: [&str; 2] = ["testing", "sim"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
    /// Registries it may be published to: none if empty, all if absent.
    publish: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Absent for what the crate itself needs; `dev` or `build` otherwise.
    kind: Option<String>,
}

/// Every way in which the packages break the rule.
fn violations(packages: &[Package]) -> Vec<String> {
    let rules = BTreeMap::from(MAY_USE);
    let mut found = Vec::new();
    let names: Vec<&str> = packages.iter().map(|package| short(&package.name)).collect();
    for name in rules.keys().filter(|name| !names.contains(name)) {
        found.push(format!("{name} has a rule and does not exist"));
    }
    for (package, name) in packages.iter().zip(&names) {
        let Some(allowed) = rules.get(name) else {
            found.push(format!("{name} has no rule"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| dependency.name.starts_with(PREFIX))
        {
            let (other, for_tests) = (short(&dependency.name), dependency.kind.as_deref() == Some("dev"));
            if !for_tests && !allowed.contains(&other) {
                found.push(format!("{name} must not use {other}"));
            }
        }
        if FOR_TESTS.contains(name) && package.publish.as_deref() != Some(&[]) {
            found.push(format!("{name} is for tests and must not be published"));
        }
    }
    found
}

fn short(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

#[test]
fn no_crate_uses_what_it_must_not() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(violations(&metadata.packages), Vec::<String>::new());
}

#[test]
fn crates_for_tests_are_in_no_rule() {
    for (name, allowed) in MAY_USE {
        assert!(FOR_TESTS.iter().all(|for_tests| !allowed.contains(for_tests)), "{name}");
    }
}

#[test]
fn what_breaks_the_rule_is_found() {
    let metadata = |name: &str, dependencies: &[(&str, Option<&str>)]| {
        let mut packages: Vec<Package> = MAY_USE
            .iter()
            .map(|(name, _)| Package {
                name: format!("{PREFIX}{name}"),
                dependencies: Vec::new(),
                publish: Some(Vec::new()),
            })
            .collect();
        let package = packages.iter_mut().find(|package| short(&package.name) == name).unwrap();
        package.dependencies = dependencies
            .iter()
            .map(|(name, kind)| Dependency { name: format!("{PREFIX}{name}"), kind: kind.map(str::to_owned) })
            .collect();
        packages
    };
    assert!(violations(&metadata("agent", &[("proto", None), ("testing", Some("dev"))])).is_empty());
    for (name, other, kind) in [
        ("agent", "coordinator", None),
        ("coordinator", "agent", Some("build")),
        ("client", "stripe", None),
        ("stripe", "proto", None),
        ("cli", "testing", None),
    ] {
        let expected = [format!("{name} must not use {other}")];
        assert_eq!(violations(&metadata(name, &[(other, kind)])), expected);
    }

    let mut packages = metadata("cli", &[]);
    packages.retain(|package| short(&package.name) != "telemetry");
    packages.push(Package { name: "stripeset-misc".into(), dependencies: Vec::new(), publish: None });
    let testing = packages.iter_mut().find(|package| short(&package.name) == "testing").unwrap();
    testing.publish = None;
    let expected = [
        "telemetry has a rule and does not exist",
        "testing is for tests and must not be published",
        "misc has no rule",
    ];
    assert_eq!(violations(&packages), expected);
}
