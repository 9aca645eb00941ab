//! Every `MAX_` of [`limits`](super::limits) has a row here: the text that a user reads at the limit, or the
//! reason why there is none. A new limit without a row fails.

use std::collections::BTreeSet;

use super::hosts::named;
use super::limits::{MAX_HOSTS, MAX_NAME, MAX_PEM};
use super::payload::read_pem;

/// The effect of a limit on a user who reaches it.
enum At {
    /// The text has the limit and this remedy in it.
    Says(String, u64, &'static str),
    /// There is no text, for this reason.
    Silent(&'static str),
}

use At::{Says, Silent};

fn refused(names: &[String]) -> String {
    named(names).expect_err("more than there may be").to_string()
}

fn large_file() -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, vec![b'-'; MAX_PEM as usize + 1]).expect("it is written");
    read_pem([&file; 3], "a").err().map(|error| error.to_string()).unwrap_or_default()
}

fn rows() -> Vec<(&'static str, At)> {
    let many: Vec<_> = (0..=MAX_HOSTS).map(|_| "a".to_owned()).collect();
    let many = refused(&many);
    let long = refused(&["a".repeat(MAX_NAME + 1)]);
    vec![
        ("MAX_HOSTS", Says(many, MAX_HOSTS as u64, "start several nodes")),
        ("MAX_NAME", Says(long, MAX_NAME as u64, "in ~/.ssh/config")),
        ("MAX_PEM", Says(large_file(), MAX_PEM, "leave out what this host does not need")),
        ("MAX_LISTED", Silent("further hosts are counted")),
        ("MAX_LINE", Silent("a longer line becomes several")),
        ("MAX_ALIGNED", Silent("longer names are not aligned")),
        ("MAX_EVENTS", Silent("the hosts' threads wait")),
    ]
}

/// Returns the limits in the source that this test is about.
fn limits() -> BTreeSet<&'static str> {
    let constants =
        include_str!("limits.rs").lines().filter_map(|line| line.strip_prefix("pub(super) const "));
    constants.filter_map(|rest| rest.split(':').next()).filter(|name| name.starts_with("MAX_")).collect()
}

#[test]
fn each_limit_names_itself_and_the_remedy() {
    let rows = rows();
    assert_eq!(rows.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), limits(), "left: rows");
    for (name, at) in rows {
        match at {
            Says(text, limit, remedy) => {
                assert!(text.contains(&limit.to_string()) && text.contains(remedy), "{name}: {text}");
            }
            Silent(reason) => assert!(!reason.is_empty(), "{name}"),
        }
    }
}
