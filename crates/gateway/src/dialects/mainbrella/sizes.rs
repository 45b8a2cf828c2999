//! The sizes that a container can have, as the dialect names them. Must hold no figure of a running server.

use remuda_types::limits::CPUS_DEFAULT;
use serde_json::{Value, json};

/// One size.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) id: &'static str,
    pub(super) instance: &'static str,
    pub(super) memory_mib: u32,
    pub(super) disk_gb: u32,
    /// Its weight in all that is counted.
    pub(super) units: u64,
}

/// All of them, smallest first; the first is the one that is had without asking.
pub(super) const SIZES: [Size; 5] = [
    Size { id: "lite", instance: "lite", memory_mib: 1_024, disk_gb: 4, units: 1 },
    Size { id: "small", instance: "standard-1", memory_mib: 4_096, disk_gb: 8, units: 6 },
    Size { id: "medium", instance: "standard-2", memory_mib: 6_144, disk_gb: 12, units: 10 },
    Size { id: "large", instance: "standard-3", memory_mib: 8_192, disk_gb: 16, units: 16 },
    Size { id: "xl", instance: "standard-4", memory_mib: 12_288, disk_gb: 20, units: 28 },
];

impl Size {
    /// The size of this name.
    pub(super) fn named(id: &str) -> Option<&'static Size> {
        SIZES.iter().find(|size| size.id == id)
    }

    /// The smallest that has so much memory; the largest where none has.
    pub(super) fn of_memory(memory_mib: u32) -> &'static Size {
        SIZES.iter().find(|size| size.memory_mib >= memory_mib).unwrap_or(&SIZES[SIZES.len() - 1])
    }

    /// Disk in MiB.
    pub(super) fn disk_mib(&self) -> u32 {
        self.disk_gb * 1_024
    }

    /// As it is told.
    pub(super) fn show(&self) -> Value {
        let Size { id, instance, memory_mib, disk_gb, units } = self;
        json!({
            "id": id,
            "name": id,
            "instance": instance,
            "cpuVcpu": CPUS_DEFAULT,
            "memoryMiB": memory_mib,
            "diskGB": disk_gb,
            "computeUnits": units,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_any_memory_has_a_size() {
        assert_eq!(Size::of_memory(128).id, "lite");
        assert_eq!(Size::of_memory(1_025).id, "small");
        assert_eq!(Size::of_memory(u32::MAX).id, "xl");
        for size in &SIZES {
            assert_eq!((Size::named(size.id), Size::of_memory(size.memory_mib)), (Some(size), size));
        }
    }
}
