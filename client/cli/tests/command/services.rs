//! `agent` and `coordinator` on their own, without `dev`: settings, health, making an array by hand.

use std::{fs, net::TcpListener, process::Stdio, time::Duration};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{process::Child, time::Instant};

use super::harness::{end, run, signal, stripeset, until};

/// A port that is free now.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn serve(arguments: &[&str]) -> Child {
    stripeset().args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[tokio::test]
async fn an_array_is_made_by_hand_and_each_service_stops_on_its_own() {
    let place = TempDir::new().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let coordinator = free_address();
    let agents = [free_address(), free_address(), free_address()];
    let config = path("coordinator.toml");
    fs::write(&config, format!("listen = '{coordinator}'\nstate = '{}'\n", path("state"))).unwrap();
    let mut children = vec![serve(&["coordinator", "--config", &config])];
    for (index, address) in agents.iter().enumerate() {
        let disk = path(&format!("disk{index}"));
        children.push(serve(&["agent", "--disk", &disk, "--size", "256MiB", "--listen", address]));
    }
    for address in agents.iter().chain([&coordinator]) {
        until("it serves", async || run(&["health", address]).await.code == 0).await;
    }
    let health = run(&["health", &agents[0], "--output", "json"]).await.expect(0).json();
    assert_eq!((health["status"].as_str(), health["serving"].as_bool()), (Some("serving"), Some(true)));

    let endpoint = format!("http://{coordinator}");
    let without = run(&["--endpoint", &endpoint, "status", "--output", "json"]).await.expect(1).json();
    assert_eq!((without["array"].is_null(), without["writes_served"].as_bool()), (true, Some(false)));
    let create = |agents: &[String]| {
        let mut arguments =
            vec!["--endpoint", &endpoint, "array", "create", "--data", "raid5", "--metadata", "raid5"];
        for agent in agents {
            arguments.extend(["--agent", agent]);
        }
        arguments.extend(["--output", "json"]);
        arguments.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let array = run(&create(&agents)).await.expect(0).json();
    assert_eq!(
        (array["data_profile"].as_str(), array["unit_bytes"].as_u64()),
        (Some("raid5-2+1"), Some(65536))
    );
    let again = run(&create(&agents)).await.expect(1);
    assert!(!again.stderr.is_empty(), "{again:?}");
    until("the array serves", async || run(&["--endpoint", &endpoint, "status"]).await.code == 0).await;

    let begin = Instant::now();
    for child in &mut children {
        signal(child.id().unwrap().try_into().unwrap(), Signal::TERM);
        assert_eq!(child.wait().await.unwrap().code(), Some(0));
    }
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert_eq!(run(&["health", &coordinator]).await.code, 1);
}

#[tokio::test]
async fn settings_are_shown_with_where_they_come_from() {
    let place = TempDir::new().unwrap();
    let config = place.path().join("agent.toml");
    fs::write(&config, "disk = '/d'\nsize = 1048576\n").unwrap();
    let mut command = stripeset();
    command.env("STRIPESET_AGENT_SIZE", "1GiB").args(["agent", "--listen", "0.0.0.0:1", "--print-config"]);
    command.arg("--config").arg(&config);
    let shown = end(command).await.expect(0).stdout;
    let file = format!("disk = \"/d\"  # file {}\n", config.display());
    let rest = "size = \"1GiB\"  # environment STRIPESET_AGENT_SIZE\nlisten = \"0.0.0.0:1\"  # flag --listen\n\
                faults = \"false\"  # default\n";
    assert_eq!(shown, file + rest);

    let json =
        run(&["coordinator", "--state", "s", "--print-config", "--output", "json"]).await.expect(0).json();
    let first = &json["settings"][0];
    assert_eq!((first["name"].as_str(), first["value"].as_str()), (Some("state"), Some("s")));
    assert_eq!(json["settings"][1]["origin"], "default");

    fs::write(&config, "dsik = '/d'\nsize = 'large'\nlisten = 'here'\n").unwrap();
    let ended = run(&["agent", "--config", config.to_str().unwrap()]).await.expect(2);
    for part in [
        "4 mistakes",
        "unknown setting \"dsik\"",
        "\"large\" is not a size",
        "\"here\" is not",
        "disk is not set",
    ] {
        assert!(ended.stderr.contains(part), "{part}: {ended:?}");
    }
}

#[tokio::test]
async fn nobody_is_waited_for_longer_than_promised() {
    // Takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let endpoint = format!("http://{address}");
    for (arguments, limit) in
        [(vec!["--endpoint", &endpoint, "status"], 1.0), (vec!["health", &address], 2.0)]
    {
        let begin = Instant::now();
        let ended = run(&arguments).await.expect(1);
        // What a busy machine takes to start a process is no part of the promise.
        assert!(begin.elapsed().as_secs_f64() < limit + 0.5, "{:?}", begin.elapsed());
        assert!(ended.stderr.contains("no answer from"), "{ended:?}");
    }
}
