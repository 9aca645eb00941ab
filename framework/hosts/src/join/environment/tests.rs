use proptest::prelude::*;

use super::*;

fn by(variables: &[(&str, &str)]) -> Result<Option<Hosts>, EnvironmentError> {
    Hosts::from_variables(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn placed_by(variables: &[(&str, &str)]) -> (Role, String, Option<u16>) {
    let hosts = by(variables).expect("they make sense").expect("several hosts");
    (hosts.role, hosts.head, hosts.count)
}

fn refused(variables: &[(&str, &str)]) -> String {
    by(variables).expect_err("they make no sense").to_string()
}

#[test]
fn a_program_that_was_started_alone_stands_alone() {
    assert_eq!(by(&[]), Ok(None));
    // In a pod, in the script of a job, or under torchrun on one machine there is one process each.
    assert_eq!(by(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("HOSTNAME", "web-3")]), Ok(None));
    assert_eq!(by(&[("SLURM_JOB_NUM_NODES", "4"), ("SLURM_NODEID", "0")]), Ok(None));
    assert_eq!(by(&[("SLURM_JOB_NUM_NODES", "1"), ("SLURM_STEP_ID", "0")]), Ok(None));
    let one = [("MASTER_ADDR", "127.0.0.1"), ("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
    assert_eq!(by(&one), Ok(None));
    assert_eq!(by(&[("TENSORPOST_HEAD", "")]), Ok(None), "unset");
}

#[test]
fn an_agent_listens_where_firewalls_know_it_unless_several_may_be_on_a_machine() {
    let port =
        |variables: &[(&str, &str)]| by(variables).expect("they make sense").expect("several hosts").port;
    assert_eq!(port(&[("TENSORPOST_HEAD", "a")]), 0);
    assert_eq!(port(&[("TENSORPOST_SERVICE", "hosts"), ("HOSTNAME", "hosts-3")]), PORT);
    assert_eq!(port(&[("MASTER_ADDR", "a"), ("WORLD_SIZE", "2"), ("RANK", "1")]), PORT);
}

#[test]
fn a_host_listens_where_the_user_says() {
    let bound = |variables: &[(&str, &str)], at| {
        let variables = [variables, &[(BIND, at)]].concat();
        by(&variables).expect("they make sense").expect("several hosts")
    };
    let agent = |at| bound(&[(HEAD, "a")], at).bind;
    assert_eq!(by(&[(HEAD, "a")]).expect("fine").expect("an agent").bind, None);
    for (said, at) in [
        ("10.0.0.2", "10.0.0.2:0"),
        ("10.0.0.2:80", "10.0.0.2:80"),
        ("::1", "[::1]:0"),
        ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        (":80", ":80"),
        ("ib0.gpu1", "ib0.gpu1:0"),
    ] {
        assert_eq!(agent(said).as_deref(), Some(at));
    }
    // The others find a head by its port, so only the address of the head is set.
    let torchrun = [("MASTER_ADDR", "n1"), ("WORLD_SIZE", "2"), ("RANK", "0")];
    let pod = [(SERVICE, "trainers"), ("HOSTNAME", "train-0")];
    for starter in [&torchrun[..], &pod, &[(LISTEN, ":7117")]] {
        assert_eq!(bound(starter, "::1").head, "[::1]:7117");
        assert_eq!(bound(starter, "10.0.0.2:80").head, "10.0.0.2:7117");
        assert_eq!(bound(starter, ":80").head, ":7117");
    }
    assert_eq!(bound(&[(LISTEN, "10.0.0.1:9")], "::1").head, "10.0.0.1:9", "it names an address itself");
    for wrong in ["a b", "[::1", ":70000", "a:b", ":"] {
        assert!(refused(&[(HEAD, "a"), (BIND, wrong)]).contains(BIND), "{wrong}");
    }
    assert_eq!(by(&[(BIND, "10.0.0.2")]), Ok(None), "it was started alone");
}

#[test]
fn own_variables_come_first() {
    let slurm = [("SLURM_JOB_NUM_NODES", "4"), ("SLURM_STEP_ID", "0"), ("TENSORPOST_HEAD", "a")];
    assert_eq!(placed_by(&slurm), (Role::Agent, "a:7117".to_owned(), None));
    for (head, address) in [
        ("a.b:80", "a.b:80"),
        ("10.0.0.1", "10.0.0.1:7117"),
        ("::1", "[::1]:7117"),
        ("[::1]", "[::1]:7117"),
        ("[fe80::1]:9", "[fe80::1]:9"),
    ] {
        assert_eq!(placed_by(&[(HEAD, head)]).1, address);
    }
    assert_eq!(placed_by(&[(LISTEN, ":80")]), (Role::Head, ":80".to_owned(), None));
    for (at, address) in [("10.0.0.1", "10.0.0.1:7117"), ("::", "[::]:7117"), ("::1", "[::1]:7117")] {
        assert_eq!(placed_by(&[(LISTEN, at)]).1, address);
    }
    let advertised = by(&[(HEAD, "a"), (ADVERTISE, "b")]).expect("fine").expect("an agent").advertise;
    assert_eq!(advertised.as_deref(), Some("b:0"));
    assert!(refused(&[(HEAD, "a"), (LISTEN, ":80")]).contains("a host is the head or has one"));
    for wrong in ["a:b", "a b", ":80", "[::1", "[x]:1", "a:70000"] {
        assert!(refused(&[(HEAD, wrong)]).contains(HEAD), "{wrong}");
    }
}

#[test]
fn slurm_numbers_its_nodes() {
    let step = |node: &'static str, list: &'static str| {
        [
            ("SLURM_JOB_NUM_NODES", "3"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_NODEID", node),
            ("SLURM_LOCALID", "0"),
            ("SLURM_JOB_NODELIST", list),
        ]
    };
    assert_eq!(placed_by(&step("0", "gpu[03-05]")), (Role::Head, ":7117".to_owned(), Some(3)));
    for (list, first) in [
        ("gpu[03-05]", "gpu03"),
        ("gpu[3,7-8],big1", "gpu3"),
        ("a,b,c", "a"),
        ("r[1-2]n[07-09].x,b", "r1n07.x"),
    ] {
        assert_eq!(placed_by(&step("2", list)), (Role::Agent, format!("{first}:7117"), Some(3)), "{list}");
    }
    assert!(refused(&step("3", "a,b,c")).contains("SLURM_NODEID is \"3\", which is not below"));
    assert!(refused(&step("x", "a")).contains("no number"));
    for wrong in ["[", "a[", "a[x]", "a[]", "a b"] {
        assert!(refused(&step("1", wrong)).contains("no list of hosts"), "{wrong}");
    }
    let mut second = step("0", "a,b,c");
    second[3].1 = "1";
    assert!(refused(&second).contains("--ntasks-per-node=1"));
    assert!(refused(&step("0", "a")[..2]).contains("SLURM_NODEID is not"));
}

#[test]
fn torchrun_ranks_its_processes() {
    let rank = |rank: &'static str, local: &'static str| {
        [
            ("MASTER_ADDR", "n1"),
            ("MASTER_PORT", "29500"),
            ("WORLD_SIZE", "2"),
            ("RANK", rank),
            ("LOCAL_WORLD_SIZE", local),
        ]
    };
    assert_eq!(placed_by(&rank("0", "1")), (Role::Head, ":7117".to_owned(), Some(2)));
    assert_eq!(placed_by(&rank("1", "1")), (Role::Agent, "n1:7117".to_owned(), Some(2)));
    assert!(refused(&rank("1", "2")).contains("--nproc-per-node=1"));
    assert!(refused(&rank("0", "1")[..2]).contains("WORLD_SIZE is not"));
    let many = [("MASTER_ADDR", "n1"), ("WORLD_SIZE", "100000"), ("RANK", "0")];
    assert!(refused(&many).contains("1024 hosts at most: start several nodes"));
}

#[test]
fn kubernetes_numbers_its_pods() {
    let pod = |name: &'static str| [(SERVICE, "trainers"), ("HOSTNAME", name)];
    assert_eq!(placed_by(&pod("train-0")), (Role::Head, ":7117".to_owned(), None));
    assert_eq!(placed_by(&pod("my-train-12")).1, "my-train-0.trainers:7117");
    let job = [(SERVICE, "s"), ("HOSTNAME", "job-1"), ("JOB_COMPLETION_INDEX", "1")];
    assert_eq!(placed_by(&job), (Role::Agent, "job-0.s:7117".to_owned(), None));
    assert!(refused(&pod("train")).contains("ends in its number"));
    assert!(refused(&pod("train-x")).contains("ends in its number"));
    assert!(refused(&[(SERVICE, "s")]).contains("HOSTNAME is not"));
}

#[test]
fn who_started_a_host_is_told_its_number_and_never_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("joined");
    let own = rustix::process::geteuid();
    let tell_at = |path: &Path, number| tell_at(path, number, own.as_raw());
    tell_at(&file, 3).expect("a file that is not there yet");
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), "3\n");
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .expect("a pipe");
    // Nobody has it open, and this returns all the same.
    tell_at(&pipe, 3).expect("nobody wants to know");
    let reader = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&pipe);
    tell_at(&pipe, 258).expect("somebody reads");
    assert_eq!(io::read_to_string(reader.expect("it opens")).expect("it is read"), "258\n");
    assert!(tell_at(&folder.path().join("is/not/there"), 0).is_err());
    // A link of this user is followed, and nobody else's is.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    tell_at(&link, 4).expect("it is followed");
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), "3\n4\n");
    // Only root gives links away. The test of another user comes as the next one.
    let other = if own.is_root() {
        std::os::unix::fs::lchown(&link, Some(65534), None).expect("root may");
        0
    } else {
        own.as_raw() + 1
    };
    assert!(super::tell_at(&link, 5, other).is_err());
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), "3\n4\n");
}

proptest! {
    /// For any text in a variable, the answer is an error or a place with a host and a port.
    #[test]
    fn any_text_is_refused_or_a_place(head in "[\\[\\]:,a-z0-9 -]{0,12}", list in "[\\[\\],a-z0-9-]{0,12}") {
        for hosts in [
            by(&[(HEAD, &head)]),
            by(&[("SLURM_JOB_NUM_NODES", "2"), ("SLURM_STEP_ID", "0"), ("SLURM_NODEID", "1"), ("SLURM_JOB_NODELIST", &list)]),
        ]
        .into_iter()
        .flatten()
        .flatten()
        {
            let (host, port) = hosts.head.rsplit_once(':').expect("a port");
            prop_assert!(!host.is_empty() && port.parse::<u16>().is_ok(), "{}", hosts.head);
        }
    }
}
