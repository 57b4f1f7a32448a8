//! Values of single options: users, patterns, addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use glob::Pattern;
use superhue::Pages;

use super::reader::LONGEST_SOCKET;
use super::{Lookups, MetricsAddress};
use crate::rules::{KeyValue, User};
use crate::users::AllowEntry;

/// The longest name of a rule, and the longest pattern.
const LONGEST_NAME: usize = 64;
const LONGEST_PATTERN: usize = 1024;

/// The longest key of a label or an annotation: a name of 63 and a prefix of 253 characters.
const LONGEST_KEY: usize = 317;

/// Reads a user or group: a name, or a number if there is no such name.
pub(super) fn user(
    text: &str,
    find: &dyn Fn(&str) -> Result<Option<u32>, String>,
) -> Result<User, String> {
    // The last number means "no user" to the kernel.
    let number = text.parse().ok().filter(|&number| number != u32::MAX);
    if text.is_empty() {
        return Err("`` is no user".to_owned());
    }
    // A rule about an unknown user would be passed over, and the next one taken: so a failure to look it up is a fault of the configuration.
    let found = find(text).map_err(|why| format!("`{text}` cannot be looked up: {why}"))?;
    Ok(User {
        name: text.to_owned(),
        number: found.or(number),
    })
}

/// Returns true if an address without its scheme (`127.0.0.1:10255/pods`) is of this machine itself.
pub(super) fn is_this_machine(address: &str) -> bool {
    let authority = address.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    // A name before `@` is no host.
    !authority.contains('@')
        && (host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()))
}

/// Reads `alice`, `1000` or `@staff`.
pub(super) fn allowed(text: &str, lookups: &Lookups<'_>) -> Result<AllowEntry, String> {
    if let Some(group) = text.strip_prefix('@') {
        return user(group, lookups.group_number)
            .map(AllowEntry::Group)
            .map_err(|why| match group.is_empty() {
                true => "`@` is no group".to_owned(),
                false => why,
            });
    }
    let user = user(text, lookups.user_number)?;
    if user.number == Some(0) {
        return Err(format!(
            "`{text}` needs no service: root has CAP_SYS_NICE, and what it may do is not lent"
        ));
    }
    Ok(AllowEntry::User(user))
}

/// Reads the address for metrics. One that other machines can reach needs `metrics-public`, too.
pub(super) fn metrics_address(text: &str, is_public: bool) -> Result<MetricsAddress, String> {
    if text.starts_with('/') {
        if text.len() > LONGEST_SOCKET || text.ends_with('/') || text.contains('\0') {
            return Err(format!(
                "`{text}` cannot be the path of a socket: at most {LONGEST_SOCKET} bytes, with a name at its end"
            ));
        }
        return Ok(MetricsAddress::Socket(text.into()));
    }
    let address: SocketAddr = text.parse().map_err(|_| {
        format!(
            "`{text}` is no address: write 127.0.0.1:9119, [::1]:9119 or the path of a socket, such as \
             /run/superhue/metrics.sock"
        )
    })?;
    if address.port() == 0 {
        return Err(format!(
            "`{text}` would be another port at each start: name one, such as 9119"
        ));
    }
    if !is_public && !address.ip().to_canonical().is_loopback() {
        return Err(format!(
            "`{text}` can be reached from other machines, and each of them gets an answer: use 127.0.0.1:{0}, or add \
             metrics-public = true (and see that a firewall lets in nobody but your Prometheus)",
            address.port()
        ));
    }
    Ok(MetricsAddress::Port(address))
}

pub(super) fn rule_name(text: &str) -> Result<Arc<str>, String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
    if text.is_empty() || text.len() > LONGEST_NAME || !text.chars().all(is_fine) {
        return Err(format!(
            "`{text}` is no name of a rule: 1 to {LONGEST_NAME} letters, digits and . _ @ -"
        ));
    }
    Ok(text.into())
}

/// Reads the policy; `None` for the best that works.
pub(super) fn pages(text: &str) -> Result<Option<Pages>, String> {
    if text == "auto" {
        return Ok(None);
    }
    let found = Pages::ALL.into_iter().find(|pages| pages.name() == text);
    match found {
        Some(Pages::Never) => Err(
            "`never` works only for commands that superhue starts: use \"off\", or \"kernel\" to look on"
                .to_owned(),
        ),
        Some(pages) => Ok(Some(pages)),
        None => Err(format!(
            "`{text}` is no policy: use \"auto\", \"hot\", \"resident\", \"always\", \"kernel\" (only look) \
             or \"off\" (leave alone)"
        )),
    }
}

pub(super) fn pattern(text: &str) -> Result<Pattern, String> {
    if text.is_empty() || text.len() > LONGEST_PATTERN {
        return Err(format!("a pattern has 1 to {LONGEST_PATTERN} characters"));
    }
    Pattern::new(text).map_err(|error| {
        format!(
            "`{text}` is no pattern: {} (at character {})",
            error.msg,
            error.pos + 1
        )
    })
}

/// Reads `app=redis,tier`: keys that must be present, some of them with a pattern for the value.
pub(super) fn key_values(text: &str) -> Result<Vec<KeyValue>, String> {
    let one = |part: &str| {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim_end(), Some(value.trim_start_matches('=').trim())),
            None => (part, None),
        };
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if key.is_empty() || key.len() > LONGEST_KEY || !key.chars().all(is_fine) {
            return Err(format!(
                "`{part}` is neither KEY nor KEY=VALUE, such as app=redis"
            ));
        }
        let value = value
            .filter(|value| !value.is_empty())
            .map(pattern)
            .transpose()?;
        Ok(KeyValue {
            key: key.to_owned(),
            value,
        })
    };
    text.split(',').map(|part| one(part.trim())).collect()
}

/// Replaces `${NAME}` by variables of the environment.
pub(super) fn filled(text: &str, find: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) =
            (after.split_once('}')).ok_or_else(|| format!("`{text}`: ${{ without }}"))?;
        let value = find(name).filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| format!("`{text}`: {name} is not in the environment"))?;
        filled += before;
        // An IPv6 address needs brackets in a URL.
        let is_v6 = value.parse::<std::net::Ipv6Addr>().is_ok();
        filled += &if is_v6 { format!("[{value}]") } else { value };
        rest = after;
    }
    Ok(filled + rest)
}

pub(super) fn no_slash(text: &str) -> Result<&str, String> {
    if text.contains('/') {
        return Err(format!(
            "`{text}` has a `/`, which no unit, namespace, pod or container has (for a path use cgroup)"
        ));
    }
    Ok(text)
}

pub(super) fn from_root(text: &str) -> Result<&str, String> {
    if !text.starts_with('/') || text.starts_with("/sys/fs/cgroup") {
        return Err(format!(
            "`{text}` is no cgroup: write the path below the mount, such as /system.slice/redis.service"
        ));
    }
    Ok(text)
}
