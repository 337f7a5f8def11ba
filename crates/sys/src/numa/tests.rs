//! Machines made of files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::*;

/// A tree as the kernel has it, with these nodes and their lists of CPUs.
fn tree(nodes: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, cpus) in nodes {
        let node = root.path().join(name);
        fs::create_dir(&node).unwrap();
        fs::write(node.join("cpulist"), format!("{cpus}\n")).unwrap();
    }
    fs::write(root.path().join("online"), "0-1\n").unwrap();
    fs::create_dir(root.path().join("power")).unwrap();
    root
}

#[test]
fn two_nodes() {
    let root = tree(&[("node1", "4-7,12-15"), ("node0", "0-3,8-11")]);
    let topology = Topology::read(root.path()).unwrap();
    assert!(topology.has_choice());
    let nodes: Vec<_> = (0..17).map(|cpu| topology.node_of(cpu)).collect();
    let (zero, one) = ([Some(0); 4], [Some(1); 4]);
    assert_eq!(nodes, [&zero[..], &one, &zero, &one, &[None]].concat());
}

#[test]
fn one_node_none_and_memory_alone() {
    let root = tree(&[("node0", "0-1")]);
    let topology = Topology::read(root.path()).unwrap();
    assert_eq!((topology.has_choice(), topology.node_of(1)), (false, Some(0)));
    assert_eq!(Topology::read(tree(&[]).path()).unwrap(), Topology::default());
    let root = tree(&[("node0", "0"), ("node2", "")]);
    let topology = Topology::read(root.path()).unwrap();
    assert!(topology.has_choice() && topology.node_of(2).is_none());
}

#[test]
fn what_is_not_understood_is_an_error() {
    let kind = |root: &Path| Topology::read(root).unwrap_err().kind();
    assert_eq!(kind(tree(&[("node0", "0-")]).path()), io::ErrorKind::InvalidData);
    assert_eq!(kind(Path::new("/nowhere")), io::ErrorKind::NotFound);
    let root = tree(&[]);
    fs::create_dir(root.path().join("node3")).unwrap();
    assert_eq!(kind(root.path()), io::ErrorKind::NotFound);
}

/// On the machine the test runs on each CPU that may be used is of a node, if there are any.
#[test]
fn this_machine() {
    let Ok(topology) = Topology::read(Path::new(Topology::ROOT)) else { return };
    for cpu in crate::affinity::allowed_cpus().unwrap() {
        assert!(topology.node_of(cpu).is_some(), "CPU {cpu} in {topology:?}");
    }
}
