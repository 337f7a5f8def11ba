//! Two VMs on a data plane of their own, which is what most tests begin with.

use dataplane::PortId;

use super::plane::Plane;
use super::vm::{Guest, Vm};

/// The data plane, its VMs `a` and `b`, and their ports: frames mostly go from `a` to `b`.
pub(crate) struct Pair {
    pub(crate) plane: Plane,
    pub(crate) a: Vm,
    pub(crate) b: Vm,
    pub(crate) from: PortId,
    pub(crate) to: PortId,
}

impl Pair {
    /// Two of the same kind.
    pub(crate) fn new(guest: &Guest) -> Pair {
        Pair::on(Plane::new(), [guest, guest])
    }

    pub(crate) fn on(plane: Plane, [a, b]: [&Guest; 2]) -> Pair {
        let (from, a) = plane.vm("a", a);
        let (to, b) = plane.vm("b", b);
        Pair { plane, a, b, from, to }
    }
}

impl Guest {
    /// Plain ones with split and with packed rings.
    pub(crate) fn formats() -> [Guest; 2] {
        [false, true].map(|packed| Guest { packed, ..Guest::plain() })
    }

    /// Plain ones with every kind of notification there is.
    pub(crate) fn kinds() -> [Guest; 4] {
        let kinds = [(false, false), (false, true), (true, false), (true, true)];
        kinds.map(|(packed, event_idx)| Guest { packed, event_idx, ..Guest::plain() })
    }
}
