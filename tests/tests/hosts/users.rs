//! Without a key a node belongs to one user (HOST-12).

use std::io::{BufRead, BufReader};
use std::time::Duration;

use tensorpost::hosts::Hosts;
use tensorpost::node::Console;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::user::{Tries, another, is_told_nothing, possible};
use tensorpost_tests::wait::until;
use tensorpost_watch::console;

use crate::logs::lines;
use crate::{BUILD, Other, address, head};

fn who_joins_without_a_key_is_in_the_log(builder: Builder) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("console");
    let node = head(builder.console(Console::At(path.clone())));
    let other = Other::start(&node);
    let own = rustix::process::geteuid().as_raw();
    let mut console = console::Console::at(&path).expect("its console");
    for said in ["there is no key", &format!("has joined without a key, as a process of user {own}")] {
        until(said, || lines(&mut console).iter().any(|line| line.text.contains(said)));
    }
    other.end();
    drop(node.shutdown(Duration::from_secs(10)));
}

fn another_user_is_not_served(builder: Builder) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("console");
    let node = head(builder.console(Console::At(path.clone())));
    assert!(is_told_nothing(&Tries::Host(&address(&node))), "it was told something");
    let mut console = console::Console::at(&path).expect("its console");
    until("it is in the log", || {
        lines(&mut console).iter().any(|line| line.text.contains("without a key a node is of one user"))
    });
    // Hosts of the same user join meanwhile.
    Other::start(&node).end();
    drop(node.shutdown(Duration::from_secs(10)));
}

fn another_user_is_not_believed_to_be_the_head(builder: Builder) {
    let (mut child, said) = another(&Tries::ToBeAHost);
    let mut said = BufReader::new(said).lines().map(|line| line.expect("what it says"));
    let at = said.next().expect("its address");
    let hosts = Hosts::agent(at).name("other").build_name(BUILD).join_deadline(Duration::from_secs(2));
    let refused = builder.hosts(hosts).start().err().expect("no head of this user").to_string();
    assert!(refused.contains("without a key a node is of one user"), "{refused}");
    assert_eq!(said.next().as_deref(), Some("0"), "it was told something");
    child.kill().expect("it listens");
    child.wait().expect("it ends");
}

pub(crate) fn cases() -> Vec<Case> {
    let of_others = cases![another_user_is_not_served, another_user_is_not_believed_to_be_the_head];
    let of_others = of_others.into_iter().map(|case| case.only_where(possible));
    cases![who_joins_without_a_key_is_in_the_log].into_iter().chain(of_others).collect()
}
