//! Pods: the pod that a cgroup belongs to, and the kubelet's facts about it.
//!
//! The kubelet makes a cgroup for each pod, and the runtime makes one in it for each container. Their names depend on the driver:
//!
//! ```text
//!   systemd    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_ab.slice/cri-containerd-89ef.scope
//!                                                                                          /crio-89ef.scope[/container]
//!   cgroupfs   /kubepods/burstable/pod1234-ab/89ef
//!                                            /crio-89ef
//! ```
//!
//! (`pkg/kubelet/cm/cgroup_manager_linux.go`.) Pods with guaranteed resources are one level higher. Only a cgroup at exactly such a path below the
//! root is a pod: a user who may make cgroups somewhere below cannot make one look like a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

/// Longest value of labels and annotations that is kept: no pattern of a rule is longer.
const LONGEST_VALUE: usize = 1024;

/// The pod and the container of a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place<'a> {
    /// The pod's UID, with dashes.
    pub uid: String,
    /// The container's number; `None` for the cgroup of the pod itself and for those that the runtime keeps beside containers.
    pub container: Option<&'a str>,
}

/// Returns the pod that a cgroup belongs to, by its path below the mount.
#[must_use]
pub fn place(path: &str) -> Option<Place<'_>> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let first = parts.next()?;
    if first.ends_with(".slice") {
        systemd(first, parts)
    } else {
        cgroupfs(first, parts)
    }
}

/// Each slice begins with the name of the one above it: `a.slice/a-b.slice`.
fn systemd<'a>(first: &'a str, parts: impl Iterator<Item = &'a str>) -> Option<Place<'a>> {
    let mut slice = first.strip_suffix(".slice")?;
    let mut parts = parts.peekable();
    while let Some(inner) = parts.peek().and_then(|part| part.strip_suffix(".slice")) {
        if !inner.strip_prefix(slice)?.starts_with('-') {
            return None;
        }
        slice = inner;
        parts.next();
    }
    let (above, uid) = slice.rsplit_once("-pod")?;
    let above = ["-besteffort", "-burstable"]
        .into_iter()
        .find_map(|class| above.strip_suffix(class))
        .unwrap_or(above);
    if above != "kubepods" && !above.ends_with("-kubepods") {
        return None;
    }
    let scope = parts.next().and_then(|part| part.strip_suffix(".scope"));
    Some(Place {
        uid: number(uid)?,
        container: scope.and_then(container),
    })
}

fn cgroupfs<'a>(first: &'a str, mut parts: impl Iterator<Item = &'a str>) -> Option<Place<'a>> {
    match first {
        "kubepods" => {}
        // With --cgroup-root=/kubelet.
        "kubelet" if parts.next() == Some("kubepods") => {}
        _ => return None,
    }
    let mut part = parts.next()?;
    if matches!(part, "burstable" | "besteffort") {
        part = parts.next()?;
    }
    Some(Place {
        uid: number(part.strip_prefix("pod")?)?,
        container: parts.next().and_then(container),
    })
}

/// Returns the UID of a pod. systemd allows no dashes there, so they became underscores. Pods from files of the node have a hash in place of a UID.
fn number(uid: &str) -> Option<String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    ((1..=63).contains(&uid.len()) && uid.chars().all(is_fine)).then(|| uid.replace('_', "-"))
}

/// Returns the number in `cri-containerd-89ef`, `crio-89ef`, `89ef`; not in `crio-conmon-89ef`, which monitors a container.
fn container(name: &str) -> Option<&str> {
    let (kind, id) = name.rsplit_once('-').unwrap_or(("", name));
    let is_number = id.len() >= 12 && id.chars().all(|c| c.is_ascii_hexdigit());
    (is_number && !kind.ends_with("conmon")).then_some(id)
}

/// Known facts about one pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Labels of the pod; those with values of more than 1 KiB are left out.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod, likewise.
    pub annotations: BTreeMap<String, String>,
    /// The names of its containers, by number. The kubelet knows a new one about a second after it was started.
    pub containers: BTreeMap<String, String>,
}

/// The pods of this node, by UID.
pub type Pods = BTreeMap<String, Arc<Pod>>;

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    container_statuses: Option<Vec<Container>>,
    #[serde(default)]
    init_container_statuses: Option<Vec<Container>>,
    #[serde(default)]
    ephemeral_container_statuses: Option<Vec<Container>>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    #[serde(default, rename = "containerID")]
    id: Option<String>,
}

/// The annotation that holds the hash in the cgroup's name, in the apiserver's copy of a pod from a file of the node.
const FILE_SUM: &str = "kubernetes.io/config.hash";

/// Reads the kubelet's answer at `/pods`: a `PodList`.
///
/// # Errors
/// A sentence about the fault of the answer.
pub fn read(answer: &[u8]) -> Result<Pods, String> {
    let list: List = serde_json::from_slice(answer)
        .map_err(|error| format!("this is no list of pods: {error}"))?;
    let mut pods = Pods::new();
    let mut sums = Vec::new();
    for item in list.items.unwrap_or_default() {
        let short = |all: Option<BTreeMap<String, String>>| -> BTreeMap<String, String> {
            let mut all = all.unwrap_or_default();
            all.retain(|_, value| value.len() <= LONGEST_VALUE);
            all
        };
        let status = item.status;
        let containers = [
            status.container_statuses,
            status.init_container_statuses,
            status.ephemeral_container_statuses,
        ];
        let numbered = |container: Container| {
            // `containerd://89ef`, `cri-o://89ef`; empty before it was started.
            let id = container.id?;
            let id = id.rsplit_once("//").map_or(&*id, |(_, id)| id);
            (!id.is_empty()).then(|| (id.to_owned(), container.name))
        };
        let containers = containers.into_iter().flatten().flatten();
        let pod = Pod {
            namespace: item.metadata.namespace,
            name: item.metadata.name,
            labels: short(item.metadata.labels),
            annotations: short(item.metadata.annotations),
            containers: containers.filter_map(numbered).collect(),
        };
        let pod = Arc::new(pod);
        if let Some(sum) = pod.annotations.get(FILE_SUM) {
            sums.push((sum.clone(), Arc::clone(&pod)));
        }
        pods.insert(item.metadata.uid, pod);
    }
    // Any user who may make a pod chooses its annotations: they do not take the place of another pod.
    for (sum, pod) in sums {
        pods.entry(sum).or_insert(pod);
    }
    Ok(pods)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "0c1d9ba4-5f3e-4e0c-9d57-3f1f0f9f2c11";
    const ID: &str = "89ef0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab";

    fn told(path: &str) -> Option<(String, Option<String>)> {
        let found = place(path)?;
        Some((found.uid, found.container.map(str::to_owned)))
    }

    #[test]
    fn pods_are_told_by_the_paths_of_every_driver_and_runtime() {
        let under = UID.replace('-', "_");
        let pod = || Some((UID.to_owned(), None));
        let inside = || Some((UID.to_owned(), Some(ID.to_owned())));
        for class in ["", "-burstable", "-besteffort"] {
            let slices = match class {
                "" => "/kubepods.slice".to_owned(),
                _ => format!("/kubepods.slice/kubepods{class}.slice"),
            };
            let slice = format!("{slices}/kubepods{class}-pod{under}.slice");
            assert_eq!(told(&slice), pod(), "{slice}");
            for scope in [
                format!("cri-containerd-{ID}.scope"),
                format!("crio-{ID}.scope"),
                format!("crio-{ID}.scope/container"),
                format!("docker-{ID}.scope/init.scope"),
            ] {
                assert_eq!(told(&format!("{slice}/{scope}")), inside(), "{scope}");
            }
            let conmon = format!("{slice}/crio-conmon-{ID}.scope");
            assert_eq!(told(&conmon), pod(), "{conmon}");
            // With --cgroup-root=/kubelet, as kind has it.
            let deeper = slice.replace("kubepods", "kubelet-kubepods");
            let deeper = format!("/kubelet.slice{deeper}/cri-containerd-{ID}.scope");
            assert_eq!(told(&deeper), inside(), "{deeper}");
        }
        for class in ["", "/burstable", "/besteffort"] {
            let folder = format!("/kubepods{class}/pod{UID}");
            assert_eq!(told(&folder), pod(), "{folder}");
            assert_eq!(told(&format!("{folder}/{ID}")), inside());
            assert_eq!(told(&format!("{folder}/crio-{ID}")), inside());
            assert_eq!(told(&format!("{folder}/{ID}/inner/most")), inside());
            assert_eq!(told(&format!("{folder}/crio-conmon-{ID}")), pod());
            assert_eq!(told(&format!("/kubelet{folder}/{ID}")), inside());
        }
    }

    #[test]
    fn an_annotation_does_not_take_the_place_of_another_pod() {
        let own = r#"{"metadata":{"name":"own","namespace":"a","uid":"u-1"}}"#;
        let false_one = format!(
            r#"{{"metadata":{{"name":"false","namespace":"b","uid":"u-2","annotations":{{"{FILE_SUM}":"u-1"}}}}}}"#
        );
        for items in [[own, &false_one], [&false_one, own]] {
            let answer = format!(r#"{{"items":[{}]}}"#, items.join(","));
            let pods = read(answer.as_bytes()).unwrap();
            assert_eq!(pods["u-1"].name, "own");
        }
    }

    #[test]
    fn what_only_looks_like_a_pod_is_none() {
        let under = UID.replace('-', "_");
        let scope = format!("cri-containerd-{ID}.scope");
        for path in [
            "/",
            "",
            "/kubepods.slice",
            "/kubepods.slice/kubepods-burstable.slice",
            "/kubepods/burstable",
            "/system.slice/redis.service",
            // Made by a user below a cgroup that was delegated.
            &format!(
                "/user.slice/user-7.slice/user@7.service/kubepods.slice/kubepods-pod{under}.slice/{scope}"
            ),
            &format!("/kubepods.slice/other.slice/kubepods-pod{under}.slice/{scope}"),
            &format!("/mine.slice/mine-pod{under}.slice/{scope}"),
            &format!("/home/kubepods/pod{UID}/{ID}"),
            "/kubepods/pod/x",
            &format!("/kubepods/pod{UID}%/x"),
        ] {
            assert_eq!(told(path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_is_too_strange(path in "(/[a-z._-]{0,9}(kubepods|pod|\\.slice|\\.scope)?){0,6}") {
            let _ = place(&path);
        }

        #[test]
        fn no_answer_is_too_strange(answer in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&answer);
        }
    }

    #[test]
    fn the_list_of_pods_is_read() {
        let long = "x".repeat(LONGEST_VALUE + 1);
        let answer = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[
              {{"metadata":{{"name":"redis-0","namespace":"shop","uid":"{UID}","labels":{{"app":"redis"}},
                "annotations":{{"superhue.dev/pages":"hot","kubectl.kubernetes.io/last-applied-configuration":"{long}"}}}},
               "spec":{{"containers":[{{"name":"server"}}]}},
               "status":{{"phase":"Running",
                 "initContainerStatuses":[{{"name":"init","containerID":"containerd://aa","ready":true}}],
                 "containerStatuses":[{{"name":"server","containerID":"cri-o://{ID}"}},{{"name":"late","containerID":""}},
                                      {{"name":"later"}}]}}}},
              {{"metadata":{{"name":"etcd","namespace":"kube-system","uid":"u","annotations":{{"{FILE_SUM}":"f00d"}}}}}}]}}"#
        );
        let pods = read(answer.as_bytes()).unwrap();
        let redis = &pods[UID];
        assert_eq!((&*redis.namespace, &*redis.name), ("shop", "redis-0"));
        assert_eq!(redis.labels["app"], "redis");
        assert_eq!(redis.annotations.len(), 1, "{:?}", redis.annotations);
        let containers: Vec<_> = redis.containers.iter().collect();
        assert_eq!(
            containers,
            [
                (&ID.to_owned(), &"server".to_owned()),
                (&"aa".to_owned(), &"init".to_owned())
            ]
        );
        assert_eq!(pods["f00d"], pods["u"]);
        assert_eq!(read(br#"{"items":null}"#).unwrap(), Pods::new());
        assert!(
            read(b"Unauthorized")
                .unwrap_err()
                .contains("no list of pods")
        );
    }
}
