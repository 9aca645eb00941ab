//! The hosts of `tensorpost up`: their notation, their labels, and the address where the others find the
//! first of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use anyhow::{bail, ensure};

use super::limits::{MAX_HOSTS, MAX_NAME};

/// A host, as the user names it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// The argument for ssh: `name` or `user@name`.
    pub(super) target: String,
    /// The name that people see; a host that is named twice has a number behind it.
    pub(super) label: String,
}

impl Host {
    /// Returns the name without the user.
    pub(super) fn name(&self) -> &str {
        self.target.rsplit_once('@').map_or(&self.target, |(_, name)| name)
    }
}

/// Parses the lines of a file: one host each, and comments.
pub(super) fn in_file(text: &str) -> anyhow::Result<Vec<String>> {
    let mut hosts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let number = number + 1;
        ensure!(
            !line.contains(char::is_whitespace),
            "line {number} has more than a host, {line:?}: write one in each line, `name` or `user@name`"
        );
        hosts.push(line.to_owned());
    }
    Ok(hosts)
}

/// Parses host names, in this order.
pub(super) fn named(names: &[String]) -> anyhow::Result<Vec<Host>> {
    ensure!(!names.is_empty(), "no host is named: write -H a,b, or one in each line of --hostfile");
    ensure!(
        names.len() <= MAX_HOSTS,
        "{} hosts are named, and a node has at most {MAX_HOSTS}: start several nodes",
        names.len()
    );
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut hosts = Vec::with_capacity(names.len());
    for name in names {
        let (user, host) = match name.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, name.as_str()),
        };
        let longest = host.len().max(user.map_or(0, str::len));
        ensure!(
            longest <= MAX_NAME,
            "a name of {longest} bytes is longer than {MAX_NAME}: give the host a shorter one in ~/.ssh/config"
        );
        // A name that begins with a dash would be an option of ssh.
        let fits = user.is_none_or(is_word) && (is_word(host) || host.parse::<Ipv6Addr>().is_ok());
        ensure!(fits, "{name:?} is no host: write `name` or `user@name`, with the port in ~/.ssh/config");
        let times = seen.entry(name).or_default();
        *times += 1;
        let label = if *times == 1 { name.clone() } else { format!("{name}#{times}") };
        hosts.push(Host { target: name.clone(), label });
    }
    Ok(hosts)
}

fn is_word(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (1..=MAX_NAME).contains(&text.len()) && !text.starts_with('-') && text.chars().all(fits)
}

/// The address at which the head listens, and the one where the others find it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The value of `TENSORPOST_LISTEN`.
    pub(super) listen: String,
    /// The value of `TENSORPOST_HEAD`.
    pub(super) address: String,
}

/// Returns the addresses of the head, which is the first host. The others reach it by that host's name unless
/// the user gives another.
pub(super) fn head(hosts: &[Host], said: Option<&str>, port: u16) -> anyhow::Result<Head> {
    let name = match (said, hosts) {
        (Some(said), _) => said,
        (None, [first, others @ ..]) => {
            if is_loopback(first.name())
                && let Some(other) = others.iter().find(|host| !is_loopback(host.name()))
            {
                bail!(
                    "{} is the head, and for `{}` that name is its own: put another host first, or say with --head under which name \
                     the others reach it",
                    first.label,
                    other.label
                );
            }
            first.name()
        }
        (None, []) => bail!("no host is named"),
    };
    let is_v6 = name.parse::<Ipv6Addr>().is_ok();
    ensure!(is_word(name) || is_v6, "--head {name:?} is neither a name nor an address, without its port");
    let address = if is_v6 { format!("[{name}]:{port}") } else { format!("{name}:{port}") };
    Ok(Head { listen: format!(":{port}"), address })
}

fn is_loopback(name: &str) -> bool {
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&str]) -> anyhow::Result<Vec<Host>> {
        named(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn hosts_have_names_of_their_own() {
        let found = hosts(&["a", "me@b", "a", "fe80::1", "a"]).expect("they are hosts");
        let labels: Vec<_> = found.iter().map(|host| host.label.as_str()).collect();
        assert_eq!(labels, ["a", "me@b", "a#2", "fe80::1", "a#3"]);
        assert_eq!((found[2].target.as_str(), found[1].name()), ("a", "b"));
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for name in
            ["", "-oProxyCommand=x", "me@-x", "-x@a", "@a", "me@", "a b", "a;b", "a:22", "$(a)", "a\n"]
        {
            let error = hosts(&["b", name]).expect_err(name).to_string();
            assert!(error.contains("is no host"), "{error}");
        }
        assert!(hosts(&[]).is_err());
    }

    #[test]
    fn a_file_has_a_host_in_each_line() {
        let found = in_file("# ours\n\n gpu1\nme@gpu2 # the large one\n").expect("it is such a file");
        assert_eq!(found, ["gpu1", "me@gpu2"]);
        let error = in_file("gpu1\ngpu2 slots=8\n").expect_err("slots").to_string();
        assert!(error.contains("line 2") && error.contains("slots=8"), "{error}");
    }

    #[test]
    fn the_first_host_is_the_head() {
        let at = |names: &[&str], said| head(&hosts(names).expect("hosts"), said, 7117);
        let of =
            |listen: &str, address: &str| Head { listen: listen.to_owned(), address: address.to_owned() };
        assert_eq!(at(&["me@gpu1", "gpu2"], None).expect("a head"), of(":7117", "gpu1:7117"));
        assert_eq!(at(&["gpu1", "gpu2"], Some("10.0.0.1")).expect("a head"), of(":7117", "10.0.0.1:7117"));
        assert_eq!(at(&["::1", "::1"], None).expect("a head"), of(":7117", "[::1]:7117"));
        assert_eq!(at(&["localhost", "localhost"], None).expect("a head"), of(":7117", "localhost:7117"));
        let error = at(&["localhost", "gpu2"], None).expect_err("gpu2 is another machine").to_string();
        assert!(error.contains("gpu2") && error.contains("--head"), "{error}");
        assert!(at(&["localhost", "gpu2"], Some("here")).is_ok());
        assert!(at(&["a"], Some("a:1")).is_err());
    }
}
