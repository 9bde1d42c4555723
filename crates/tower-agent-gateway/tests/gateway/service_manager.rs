//! What a service manager is told, and what the program prints for one who installs it.

use std::os::unix::net::UnixDatagram;

use crate::{
    net::run,
    support::{Config, Gateway},
};

/// The message that comes next.
async fn told(socket: &tokio::net::UnixDatagram) -> String {
    let mut buffer = [0; 256];
    let length = socket.recv(&mut buffer).await.unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn a_service_manager_hears_of_start_reload_and_stop() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = tokio::net::UnixDatagram::from_std(socket).unwrap();
        let config = Config::new("").candidates(&["m"], ([127, 0, 0, 1], 9).into());
        let config = config.env("NOTIFY_SOCKET", path.to_str().unwrap());

        let (mut gateway, file) = config.start_with_file().await;
        assert_eq!(told(&socket).await, "READY=1\n");

        // It is ready again after a configuration that cannot be used, with the one before.
        for config in [Config::new(""), Config::new("nonsense = 1")] {
            file.replace(&config.candidates(&["n"], ([127, 0, 0, 1], 9).into()));
            gateway.signal("HUP");
            let reloading = told(&socket).await;
            assert!(
                reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="),
                "{reloading}"
            );
            assert_eq!(told(&socket).await, "READY=1\n");
        }

        gateway.signal("TERM");
        assert_eq!(told(&socket).await, "STOPPING=1\n");
        assert!(gateway.exit_status().await.success());
    });
}

#[test]
fn a_service_manager_that_is_gone_changes_nothing() {
    run(async {
        let config = Config::new("").candidates(&["m"], ([127, 0, 0, 1], 9).into());
        let gateway = config.env("NOTIFY_SOCKET", "/nowhere/notify").start().await;
        assert_eq!(gateway.json("/v1/models").await["data"][0]["id"], "m");
        assert!(
            gateway.log().contains("service manager not notified"),
            "{}",
            gateway.log()
        );
    });
}

#[test]
fn completions_and_the_manual_page_know_every_flag() {
    run(async {
        for args in [
            &["--man"][..],
            &["--completions", "bash"],
            &["--completions", "zsh"],
            &["--completions", "fish"],
        ] {
            let (status, [said, told]) = Gateway::printed(args, &[]).await;
            assert_eq!((status, &*told), (Some(0), ""), "{args:?}");
            // The page escapes each hyphen.
            let said = said.replace('\\', "");
            for flag in [
                "config",
                "listen",
                "demo-load",
                "print-config",
                "probe",
                "schema",
            ] {
                assert!(said.contains(flag), "{args:?} lacks {flag}: {said}");
            }
            assert!(said.contains("tower-agent-gateway"), "{args:?}: {said}");
        }
        let (status, [_, told]) = Gateway::printed(&["--completions", "csh"], &[]).await;
        assert_eq!(status, Some(2), "{told}");
        let (status, [_, told]) = Gateway::printed(&["--man", "--demo-load"], &[]).await;
        assert_eq!(status, Some(2), "{told}");
    });
}
