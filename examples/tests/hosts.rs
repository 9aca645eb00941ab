//! Tests of the example on two hosts, and of the files with which Slurm and Kubernetes start it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::tempdir;
use tensorpost_hosts::join::{ADVERTISE, Hosts, Role, SERVICE};
use tensorpost_hosts::limits::{JOIN_DEADLINE, PORT};
use tensorpost_hosts::security::PEM_FILES;

const PROGRAM: &str = env!("CARGO_BIN_EXE_18-two-hosts");
const README: &str = include_str!("../README.md");
const STATEFUL_SET: &str = include_str!("../hosts/statefulset.yaml");
const SBATCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hosts/two-hosts.sbatch");

/// Returns the expected output from the README.
fn expected() -> &'static str {
    let section = README.split_once("\n## 18-two-hosts\n").expect("the README has the example").1;
    section.split_once("```text\n").expect("what it prints").1.split_once("```").expect("the block ends").0
}

fn said(output: &Output) -> String {
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "it ended with {}: {said}{errors}", output.status);
    said.into_owned()
}

#[test]
fn one_command_starts_both_hosts() {
    assert_eq!(said(&Command::new(PROGRAM).output().expect("it runs")), expected());
}

/// Runs the file for Slurm with a script as `srun`, which starts both processes here, with the variables that
/// Slurm's `srun` sets.
#[test]
fn slurm_starts_both_hosts() {
    let folder = tempdir().expect("a folder");
    let srun = folder.path().join("srun");
    let stands_in = r#"#!/bin/bash
set -eu
while [[ "$1" == --* ]]; do options="${options:-} $1"; shift; done
[[ "$options" == *" --ntasks-per-node=1"* ]] || { echo "several processes on a host" >&2; exit 2; }
[[ "$(stat -c %a "$TENSORPOST_KEY_FILE")" == 600 ]] || { echo "others can read the key" >&2; exit 2; }
export SLURM_JOB_NUM_NODES=2 SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_JOB_NODELIST=localhost
SLURM_NODEID=1 "$@" & other=$!
trap 'kill "$other" 2>/dev/null || true' EXIT
SLURM_NODEID=0 "$@"
wait "$other"
"#;
    fs::write(&srun, stands_in).expect("written");
    fs::set_permissions(&srun, fs::Permissions::from_mode(0o755)).expect("executable");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").expect("a path"));
    let mut command = Command::new("bash");
    command.arg(SBATCH).env("PATH", path).env("PROGRAM", PROGRAM);
    command.env("SLURM_SUBMIT_DIR", folder.path()).env("SLURM_JOB_ID", "7");
    let output = command.output().expect("bash runs");
    // Nobody has started another host here.
    let lines: Vec<_> = expected().lines().filter(|line| !line.starts_with("the other host")).collect();
    assert_eq!(said(&output).lines().collect::<Vec<_>>(), lines);
    let left: Vec<_> =
        fs::read_dir(folder.path()).expect("listed").map(|file| file.expect("one").file_name()).collect();
    assert_eq!(left, ["srun"], "the key is gone");

    let asked = fs::read_to_string(SBATCH).expect("the file");
    for option in ["#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1"] {
        assert!(asked.lines().any(|line| line == option), "{option}");
    }
}

/// Returns the text after `key` in the first line that begins with it.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix(key));
    line.unwrap_or_else(|| panic!("there is no {key}")).trim()
}

#[test]
fn kubernetes_gives_each_host_what_it_reads() {
    let documents: Vec<_> = STATEFUL_SET.split("\n---\n").collect();
    let of_kind = |kind: &str| {
        let is_it = |document: &&&str| value(document, "kind:") == kind;
        *documents.iter().find(is_it).unwrap_or_else(|| panic!("there is no {kind}"))
    };
    let (service, set, certificate) =
        (of_kind("Service"), of_kind("StatefulSet"), documents[documents.len() - 1]);
    // Check the variables: each is one that is read, and none is missing.
    let (variables, rest) =
        set.split_once("env:").expect("variables").1.split_once("\n          ports:").expect("their end");
    let named =
        variables.split("- name: ").skip(1).map(|entry| (entry.lines().next().unwrap_or_default(), entry));
    let named: Vec<_> = named.collect();
    let own: BTreeSet<_> = named.iter().map(|(name, _)| *name).filter(|name| *name != "POD_NAME").collect();
    let read: BTreeSet<_> = [SERVICE, ADVERTISE].into_iter().chain(PEM_FILES).collect();
    assert_eq!(own, read);

    // The hosts that the variables describe, for a pod.
    let at = |pod: &str| {
        Hosts::from_variables(|name| match name {
            "HOSTNAME" => Some(pod.to_owned()),
            _ => {
                let found = named.iter().find(|(known, _)| *known == name)?.1;
                Some(value(found, "value:").replace("$(POD_NAME)", pod))
            }
        })
    };
    let name = value(set.split_once("metadata:").expect("its name").1, "name:");
    let head = at(&format!("{name}-0")).expect("they make sense").expect("one of several");
    let agent = at(&format!("{name}-2")).expect("they make sense").expect("one of several");
    assert_eq!((head.role, agent.role), (Role::Head, Role::Agent));
    // The advertised name is where the others look for it. Port 0 stands for the listener's port.
    let without_port = |address: &str| address.rsplit_once(':').expect("a port").0.to_owned();
    assert_eq!(head.advertise.as_deref().map(without_port), Some(without_port(&agent.head)));
    assert_eq!((head.port, agent.port), (PORT, PORT));
    // The names in the network must be those of the service and of the certificate.
    let services = value(service.split_once("metadata:").expect("its name").1, "name:");
    let domain = agent.head.split_once('.').expect("a domain").1.rsplit_once(':').expect("a port").0;
    assert_eq!(value(set, "serviceName:"), services);
    assert!(domain.starts_with(&format!("{services}.{}.", value(set, "namespace:"))), "{domain}");
    assert!(certificate.contains(&format!("- \"*.{domain}\"")), "{domain}");
    assert!(service.contains("clusterIP: None") && service.contains("publishNotReadyAddresses: true"));
    // Check the port, and the files that the probes present.
    assert_eq!((value(service, "port:"), value(rest, "containerPort:")), ("7117", "7117"));
    assert_eq!(PORT, 7117);
    let probes: Vec<_> = rest.split("Probe:").skip(1).collect();
    assert_eq!(probes.len(), 3);
    for probe in &probes {
        assert!(
            probe.contains("- -addr=127.0.0.1:7117") && probe.contains("-tls-client-key=/tls/tls.key"),
            "{probe}"
        );
    }
    let number = |key| value(probes[0], key).parse::<u64>().expect("a number");
    assert!(
        number("periodSeconds:") * number("failureThreshold:") > JOIN_DEADLINE.as_secs(),
        "it may take as long to join"
    );
    assert!(Path::new(value(named[3].1, "value:")).starts_with("/tls") && set.contains("mountPath: /tls"));
    assert_eq!(
        value(set.split_once("secret:").expect("a secret").1, "secretName:"),
        value(certificate, "secretName:")
    );
}
