//! Signs of a container.
//!
//! A container is a convention, not a kernel object: some namespaces, a cgroup, a root of its own. The cgroup's path names
//! the engine, unless a cgroup namespace hides it. A PID namespace
//! cannot be hidden, because the initial one always has the same inode number.

use std::fs;

use crate::Roots;
use crate::system::file;

/// Inode number of the initial PID namespace (`PROC_PID_INIT_INO`; `PID_NS_INIT_INO` of
/// `linux/nsfs.h`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Returns the kind of container that the signs suggest, and appends each sign to `how`.
pub(super) fn detect(roots: &Roots, how: &mut Vec<String>) -> Option<String> {
    let own = roots.proc.join("self");
    let engine = file::hint(&own.join("cgroup")).and_then(|text| of_cgroup(&text));
    if let Some(engine) = engine {
        how.push(format!("the cgroup's path is one that {engine} makes"));
    }
    let namespace = fs::read_link(own.join("ns/pid")).ok();
    let nested = namespace.is_some_and(|link| link.as_os_str() != INITIAL_PID_NAMESPACE);
    if nested {
        how.push("the PID namespace is not the initial one".to_owned());
    }
    if file::hint(&own.join("mountinfo"))
        .and_then(|text| root_filesystem(&text))
        .as_deref()
        == Some("overlay")
    {
        how.push(
            "the root file system is an overlay, as containers and live systems have".to_owned(),
        );
    }
    engine
        .map(ToOwned::to_owned)
        .or_else(|| nested.then(|| "of unknown kind".to_owned()))
}

/// Returns the engine that makes cgroup paths like those in `/proc/self/cgroup`.
pub(super) fn of_cgroup(text: &str) -> Option<&'static str> {
    const KNOWN: [(&str, &str); 9] = [
        // Kubernetes comes first: the runtime's own name may follow below its slice.
        ("/kubepods", "Kubernetes"),
        ("/libpod", "Podman"),
        ("/docker/", "Docker"),
        ("/docker-", "Docker"),
        ("/lxc/", "LXC"),
        ("/lxc.payload", "LXC"),
        ("/crio-", "CRI-O"),
        ("/containerd", "containerd"),
        ("/machine.slice/systemd-nspawn", "systemd-nspawn"),
    ];
    let paths: Vec<&str> = text
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .collect();
    KNOWN
        .iter()
        .find(|(part, _)| paths.iter().any(|path| path.contains(part)))
        .map(|(_, engine)| *engine)
}

/// Returns the type of the file system mounted on `/`, from `/proc/self/mountinfo`.
///
/// A line is `ID PARENT DEV ROOT MOUNTPOINT OPTIONS [TAGS...] - TYPE SOURCE SUPEROPTIONS`
/// (`proc_pid_mountinfo(5)`). Where mounts on `/` are stacked, the last one is on top.
pub(super) fn root_filesystem(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(" - "))
        .filter(|(mount, _)| mount.split(' ').nth(4) == Some("/"))
        .filter_map(|(_, filesystem)| filesystem.split(' ').next())
        .next_back()
        .map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn engines_are_known_by_their_paths() {
        for (text, engine) in [
            ("0::/\n", None),
            ("0::/user.slice/user-1000.slice/session-1.scope\n", None),
            ("9:name=systemd:/\n0::/docker/0123abcd\n", Some("Docker")),
            ("0::/system.slice/docker-0123abcd.scope\n", Some("Docker")),
            ("0::/system.slice/docker.service\n", None),
            (
                "4:memory:/kubepods/burstable/pod1/crio-abc\n",
                Some("Kubernetes"),
            ),
            (
                "0::/user.slice/user.service/libpod-abc.scope\n",
                Some("Podman"),
            ),
            ("/docker/in/no/third/field\n", None),
        ] {
            assert_eq!(of_cgroup(text), engine, "{text:?}");
        }
    }

    #[test]
    fn the_topmost_root_is_found() {
        let text = "21 1 0:2 / / rw - rootfs rootfs rw\n\
                    22 21 0:21 / /proc rw,relatime - proc proc rw\n\
                    40 21 0:50 / / rw,relatime master:3 - overlay overlay rw,lowerdir=/l\n";
        assert_eq!(root_filesystem(text).as_deref(), Some("overlay"));
        assert_eq!(
            root_filesystem("22 21 0:21 / /proc rw - proc proc rw\n"),
            None
        );
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = (of_cgroup(&text), root_filesystem(&text));
        }
    }
}
