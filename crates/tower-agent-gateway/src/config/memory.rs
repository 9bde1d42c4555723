//! The memory that the process may use, as the system says.

use std::{fs, path::Path};

/// The share of the process's memory that request bodies may take, as a divisor.
const SHARE: u64 = 4;

/// The bytes of request bodies that are held if the system does not say how much memory there is.
const UNKNOWN: usize = 256 * 1024 * 1024;

/// The bytes of request bodies that are held unless the file says otherwise: a quarter of the memory
/// that the process may use, and at least `least`.
pub(super) fn default_buffer(least: usize) -> usize {
    share(limit_in(Path::new("/")), least)
}

fn share(memory: Option<u64>, least: usize) -> usize {
    let share = memory.map_or(UNKNOWN, |memory| {
        usize::try_from(memory / SHARE).unwrap_or(usize::MAX)
    });
    share.max(least)
}

/// The least of the limits of the control group and of the process, and of the memory that there
/// is; `root` is the root of the file system.
fn limit_in(root: &Path) -> Option<u64> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let limits = read("proc/self/limits");
    let of_process = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max address space"))
        .and_then(first_number);
    let memory = read("proc/meminfo");
    let of_machine = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(first_number)
        .map(|kib| kib.saturating_mul(1024));
    let groups = read("proc/self/cgroup");
    let of_groups = groups
        .lines()
        .flat_map(limit_files)
        .filter_map(|path| first_number(&read(&path)));
    let known = of_process.into_iter().chain(of_machine).chain(of_groups);
    // Some systems say 0 where they mean no limit.
    known.filter(|limit| *limit > 0).min()
}

/// The files that may hold the limit of a control group: those of itself and of all groups around
/// it. A container mostly sees its own group as the root, by another path.
fn limit_files(line: &str) -> Vec<String> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
    else {
        return Vec::new();
    };
    let (mount, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|it| it == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let groups = Path::new(path).ancestors();
    let groups = groups.filter_map(|group| group.to_str());
    groups
        .map(|group| format!("{mount}/{}/{file}", group.trim_matches('/')))
        .collect()
}

/// The number that a text begins with; `None` for words such as `max` and `unlimited`.
fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// A root of a file system, removed at the drop.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("memory-{}-{name}", std::process::id());
            let root = std::env::temp_dir().join(name);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree: 1 kB\n",
    );

    fn limits(address_space: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max cpu time              unlimited            unlimited            seconds   \n\
             Max address space         {address_space:<20} unlimited            bytes     \n"
        )
    }

    #[test]
    fn the_least_limit_counts() {
        let (none, four) = (limits("unlimited"), limits("4294967296"));
        let (none, four) = (none.as_str(), four.as_str());
        let process = |text| ("proc/self/limits", text);
        let v2 = ("proc/self/cgroup", "0::/a/b\n");
        let v1 = (
            "proc/self/cgroup",
            "12:pids:/a\n4:cpu,memory:/docker/x\n0::/\n",
        );
        for (name, files, expected) in [
            ("nothing", Vec::new(), None),
            ("ram", vec![MEMINFO, process(none)], Some(16 * 1024 * MIB)),
            ("process", vec![MEMINFO, process(four)], Some(4096 * MIB)),
            (
                "own-group",
                vec![MEMINFO, v2, ("sys/fs/cgroup/a/b/memory.max", "536870912\n")],
                Some(512 * MIB),
            ),
            (
                "outer-group",
                vec![
                    v2,
                    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                    ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
                ],
                Some(1024 * MIB),
            ),
            (
                "container",
                vec![MEMINFO, v2, ("sys/fs/cgroup/memory.max", "268435456\n")],
                Some(256 * MIB),
            ),
            (
                "v1",
                vec![
                    MEMINFO,
                    v1,
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n"),
                ],
                Some(128 * MIB),
            ),
            (
                "v1-without-a-limit",
                vec![
                    MEMINFO,
                    v1,
                    (
                        "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes",
                        "9223372036854771712\n",
                    ),
                ],
                Some(16 * 1024 * MIB),
            ),
        ] {
            let root = Root::new(name, &files);
            assert_eq!(limit_in(&root.0), expected, "{name}");
        }
    }

    #[test]
    fn a_quarter_is_for_request_bodies_and_one_always_fits() {
        assert_eq!(share(Some(4096 * MIB), 32), 1 << 30);
        assert_eq!(share(Some(64 * MIB), 32 << 20), 32 << 20);
        assert_eq!(share(None, 32 << 20), UNKNOWN);
    }
}
