use std::{
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
};

use super::{eventually, within};

/// Lines that a process wrote so far.
type OutputLines = Arc<Mutex<Vec<String>>>;

/// A child process with its output; it is killed at the drop.
pub(crate) struct Process {
    child: Child,
    stdout: OutputLines,
    stderr: OutputLines,
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("The process's log:\n{}", self.log());
        }
    }
}

impl Process {
    /// Starts the command with both of its outputs read.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdout = collect(child.stdout.take().unwrap());
        let stderr = collect(child.stderr.take().unwrap());
        Self {
            child,
            stdout,
            stderr,
        }
    }

    /// Waits for a line on standard output that has this in it: what follows there.
    pub(crate) async fn line_after(&self, prefix: &str) -> String {
        eventually(async || {
            // The task that reads has the other reference, until the end.
            let has_ended = Arc::strong_count(&self.stdout) == 1;
            let lines = self.stdout.lock().unwrap();
            let mut found = lines.iter().filter_map(|line| line.split_once(prefix));
            let found = found.next().map(|(_, rest)| rest.to_owned());
            assert!(
                found.is_some() || !has_ended,
                "ended without {prefix:?}: {}",
                self.log()
            );
            found
        })
        .await
    }

    /// The lines on standard output so far.
    pub(crate) fn printed(&self) -> Vec<String> {
        self.stdout.lock().unwrap().clone()
    }

    /// All that came on standard error so far.
    pub(crate) fn log(&self) -> String {
        let lines = self.stderr.lock().unwrap();
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.id().to_string();
        let sent = std::process::Command::new("kill")
            .args([&format!("-{name}"), &process])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Stops the process, and waits until none of its threads runs: the signal is only delivered
    /// when a thread next has a processor. Where there is no `/proc`, a wait stands in.
    pub(crate) async fn freeze(&self) {
        self.signal("STOP");
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.id())) else {
            return tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        };
        let stats: Vec<_> = threads
            .map(|thread| thread.unwrap().path().join("stat"))
            .collect();
        let is_stopped = |stat: &std::path::PathBuf| {
            let stat = std::fs::read_to_string(stat).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        };
        eventually(async || stats.iter().all(is_stopped).then_some(())).await;
    }

    /// Kills the process, and waits until its sockets are closed.
    pub(crate) async fn kill(mut self) {
        within(self.child.kill()).await.unwrap();
    }

    /// Waits for the end of the process.
    pub(crate) async fn exit_status(&mut self) -> ExitStatus {
        within(self.child.wait()).await.unwrap()
    }

    /// How many files and sockets the process holds.
    #[cfg(target_os = "linux")]
    pub(crate) fn open_files(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.id()));
        files.unwrap().count()
    }

    /// How long the process has run on a processor so far.
    #[cfg(target_os = "linux")]
    pub(crate) fn processor_time(&self) -> std::time::Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        // Behind the name: of the program's own time and the kernel's, in ticks of 10 ms.
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let ticks = rest.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        std::time::Duration::from_millis(10 * ticks)
    }

    /// A figure of the process's memory by its name in `/proc`, such as `VmHWM`, in MiB.
    #[cfg(target_os = "linux")]
    pub(crate) fn memory(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let mut figures = status.lines().filter_map(|line| line.split_once(':'));
        let (_, figure) = figures.find(|(key, _)| *key == name).unwrap();
        let kib: usize = figure.trim().trim_end_matches(" kB").parse().unwrap();
        kib / 1024
    }

    fn id(&self) -> u32 {
        self.child.id().expect("the process has not ended")
    }
}

/// Reads to the end, since a full pipe would block the process.
fn collect(output: impl AsyncRead + Send + Unpin + 'static) -> OutputLines {
    let lines = OutputLines::default();
    let collected = Arc::clone(&lines);
    tokio::spawn(async move {
        let mut output = BufReader::new(output).lines();
        while let Ok(Some(line)) = output.next_line().await {
            collected.lock().unwrap().push(line);
        }
    });
    lines
}
