//! Which CPUs are near which memory.

use std::fs;
use std::io;
use std::path::Path;

use crate::affinity::parse_cpu_list;

/// The NUMA nodes of a machine and their CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Number of a node and its CPUs, by number. A node may have none.
    nodes: Vec<(u16, Vec<usize>)>,
}

impl Topology {
    /// Where the kernel shows it.
    pub const ROOT: &str = "/sys/devices/system/node";

    /// Reads the directories `nodeN` below `root`. A kernel without NUMA has none.
    ///
    /// # Errors
    /// `root` or a `cpulist` in it cannot be read; `InvalidData` if one is not a list of CPUs.
    pub fn read(root: &Path) -> io::Result<Topology> {
        let mut nodes = Vec::new();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node"));
            let Some(node) = number.and_then(|number| number.parse().ok()) else { continue };
            let text = fs::read_to_string(entry.path().join("cpulist"))?;
            // A node of memory only.
            let cpus = match text.trim() {
                "" => Vec::new(),
                list => parse_cpu_list(list)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?,
            };
            nodes.push((node, cpus));
        }
        nodes.sort_unstable();
        Ok(Topology { nodes })
    }

    /// Whether there is anything to choose: more than one node.
    #[must_use]
    pub fn has_choice(&self) -> bool {
        self.nodes.len() > 1
    }

    /// The node a CPU belongs to.
    #[must_use]
    pub fn node_of(&self, cpu: usize) -> Option<u16> {
        let found = self.nodes.iter().find(|(_, cpus)| cpus.contains(&cpu));
        found.map(|(node, _)| *node)
    }
}

#[cfg(test)]
mod tests;
