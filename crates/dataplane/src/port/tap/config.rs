//! A TAP port made from its specification.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use packet::Offloads;
use parking_lot::Mutex;
use switch::PortId;
use sys::tap::{Tap, TapConfig};

use crate::counters::QueueCounters;
use crate::homes::Homes;
use crate::port::tap::TapPort;
use crate::port::tap::rx::{RxQueue, TapRx};
use crate::port::tap::tx::TapTx;
use crate::port::{Kind, Port};
use crate::spec::{PortSpec, TapSpec};

/// Creates the interface and the port around it.
///
/// # Errors
///
/// The interface exists, the namespace does not, or this process may not create interfaces.
pub(crate) fn create(
    id: PortId,
    spec: &PortSpec,
    tap: &TapSpec,
    homes: Homes,
) -> io::Result<(Arc<Port>, Vec<TapTx>)> {
    let (ifname, netns) = (tap.ifname.as_str(), tap.netns.as_deref());
    let queues = Tap::create(&TapConfig { ifname, netns, queues: tap.queues })?;
    let queues: Vec<_> = queues.into_iter().map(Arc::new).collect();
    let interface = queues.first().map(|queue| Arc::clone(queue.tap()));
    if let (Some(mtu), Some(interface)) = (spec.mtu, &interface) {
        interface.set_mtu(mtu)?;
    }
    let uso = interface.as_ref().is_some_and(|interface| interface.has_uso());
    let uso = if uso { Offloads::NONE } else { Offloads::USO4 | Offloads::USO6 };
    let offloads = Offloads::ALL.without(uso);
    let rx = queues.iter().map(|queue| RxQueue {
        live: Mutex::new(TapRx::new(Arc::clone(queue), offloads)),
        counters: QueueCounters::default(),
    });
    let kind = Kind::Tap(TapPort { rx: rx.collect(), interface, since: SystemTime::now() });
    let port = Port::new(id, spec.name.clone(), homes, queues.len(), kind);
    port.set_mtu(spec.mtu.unwrap_or(0).into());
    let port = Arc::new(port);
    let tx = (0u16..).zip(queues);
    let tx = tx.map(|(i, queue)| TapTx::new(Arc::clone(&port), i, queue)).collect();
    Ok((port, tx))
}
