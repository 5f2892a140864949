//! What is refused, with which exit code, and that the message says what was given, what is allowed, what to do.

use tempfile::TempDir;

use super::harness::{end, run, stripeset};

#[tokio::test]
async fn wrong_input_is_refused_with_exit_code_2_and_a_clear_message() {
    let place = TempDir::new().unwrap();
    let folder = place.path().to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["fly"], "unrecognized subcommand 'fly'"),
        (&["ls", "--output", "xml"], "possible values: table, json"),
        (&["--endpoint", "127.0.0.1:1", "ls"], "write it as http://HOST:PORT"),
        (&["--endpoint", "https://127.0.0.1:1", "ls"], "asks for TLS"),
        (&["demo", "--data", "raid7"], "unknown profile \"raid7\": use single, dup"),
        (&["demo", "--data", "raid5-4+2"], "parity shards are 1 for raid5"),
        (&["demo", "--data", "raid6", "--agents", "2"], "needs 3 members, there are 2: give more --agents"),
        (&["demo", "--agents", "0"], "from 1 to 64"),
        (&["demo", "--kill", "6"], "--kill 6: there are 5 agents, and raid5-4+1 bears 1"),
        (&["demo", "/no/such/path"], "cannot read /no/such/path"),
        (&["demo", folder], "nothing to store"),
        (&["dev", "--agents", "x"], "invalid value 'x' for '--agents <N>'"),
        (
            &["dev", "--dir", folder, "--agents", "1", "--data", "raid5"],
            "raid5-1+1 needs 2 members, there are 1",
        ),
        (&["dev", "--agent-size", "1GB"], "use KiB, MiB, GiB or TiB"),
        (&["dev", "--dir", folder, "--agent-size", "1MiB"], "--agent-size 1MiB: a disk with one slice"),
        (&["dev", "--unit", "3KiB"], "a power of two from 4KiB to 1MiB"),
        (&["dev", "--listen", "here"], "write IP:PORT"),
        (&["dev", "--policy", "best"], "possible values: fresh, reuse"),
        (&["dev", "--dir", "/proc/version"], "is a file: give a folder"),
        (&["dev", "start", "agent-0"], "give the folder of the running `stripeset dev`: --dir DIR"),
        (&["dev", "--agents", "3", "start", "agent-0", "--dir", folder], "`dev start` takes --dir alone"),
        (&["agent", "--disk", "d", "--listen", "here"], "write IP:PORT"),
        (&["agent"], "disk is not set: give --disk"),
        (&["coordinator", "--config", "/no/such/file"], "cannot read /no/such/file"),
        (&["coordinator", "--state", "s", "--start-patience", "soon"], "use ms, s, m or h"),
        (&["array", "create", "--data", "raid5", "--metadata", "raid5"], "--agent <ADDR>"),
        (
            &["array", "create", "--agent", "a:1", "--data", "raid5", "--metadata", "raid5"],
            "--data: profile raid5-1+1 needs 2",
        ),
        (&["array", "create", "--agent", "a", "--data", "raid5", "--metadata", "raid5"], "write HOST:PORT"),
        (&["put", "/no/such/file", "a"], "cannot read /no/such/file"),
        (&["put", folder, "a"], "is a folder: put stores one file"),
        (&["get", "a", folder], "is a folder: give the name of a file"),
        (&["get", "a", "-", "--output", "json"], "standard output is one JSON document"),
        (&["get", "a", "b", "--offset", "-1"], "unexpected argument '-1'"),
        (&["explain"], "give the NAME of an object or --logical ADDRESS"),
        (&["explain", "a", "--logical", "0"], "cannot be used with"),
        (&["health", "nowhere"], "write HOST:PORT"),
        (&["completions", "dos"], "possible values: bash"),
    ];
    for (arguments, part) in cases {
        let ended = run(arguments).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{arguments:?}: {ended:#?}");
        assert!(ended.stderr.contains(part), "{arguments:?}: {part} is not in {}", ended.stderr);
    }
    // Nothing was begun by what was refused.
    assert_eq!(
        std::fs::read_dir(folder).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count(),
        0
    );
}

#[tokio::test]
async fn nobody_there_is_exit_code_1() {
    let endpoint = ["--endpoint", "http://127.0.0.1:1"];
    for command in
        [&["ls"][..], &["stat", "a"], &["rm", "a"], &["status"], &["member", "list"], &["array", "show"]]
    {
        let ended = run(&[&endpoint, command, &["--output", "json"]].concat()).await.expect(1);
        assert_eq!(ended.stdout, "");
        assert!(ended.stderr.contains("cannot reach http://127.0.0.1:1: connection refused"), "{ended:?}");
    }
}

#[tokio::test]
async fn what_needs_nobody_works_alone() {
    let version = run(&["version", "--output", "json"]).await.expect(0).json();
    assert_eq!(
        (&version["name"], &version["version"]),
        (&"stripeset".into(), &env!("CARGO_PKG_VERSION").into())
    );
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(run(&["completions", shell]).await.expect(0).stdout.contains("stripeset"), "{shell}");
    }
    let help = run(&["--help"]).await.expect(0).stdout;
    assert!(help.contains("Exit codes") && help.contains("Examples:"), "{help}");
    assert!(!help.contains("child-of"));
    let mut environment = stripeset();
    environment.env("STRIPESET_ENDPOINT", "http://127.0.0.1:2").arg("ls");
    assert!(end(environment).await.expect(1).stderr.contains("http://127.0.0.1:2"));
}
