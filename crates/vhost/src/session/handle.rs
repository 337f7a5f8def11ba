//! What each request does.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use guestmem::{RegionFile, RegionSpec};
use sys::EventFd;
use vhost::vhost_user::message::{
    FrontendReq, VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures,
};
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_FEATURES_OK;
use virtqueue::MAX_QUEUE_SIZE;

use super::ring::{Kick, Ring};
use super::{Action, MAX_REGIONS, Memory, Pending, Session, Then, Work, guest_features};
use crate::SessionFault;
use crate::message::{Message, RingAddr, RingFdKind, RingState, reply};

/// Least MTU of IPv4 (RFC 791), which virtio takes over (virtio 1.3, 5.1.4.1).
const MIN_MTU: u16 = 68;

pub(super) type Handled = Result<(), SessionFault>;

impl Session {
    /// Handles a request whose form is right.
    pub(super) fn handle(&mut self, pending: Pending, message: Message) {
        let result = match message {
            Message::GetFeatures => return self.reply_number(pending.request.into(), self.offered),
            Message::GetProtocolFeatures => {
                return self.reply_number(pending.request.into(), self.offered_protocol);
            }
            Message::GetQueueNum => {
                return self.reply_number(pending.request.into(), self.spec.queue_num.into());
            }
            Message::GetMaxMemSlots => self.get_max_mem_slots(pending),
            Message::GetStatus => self.get_status(pending),
            Message::GetConfig(range) => self.get_config(pending, range),
            Message::SetConfig(range, bytes) => self.set_config(pending, range, bytes),
            Message::GetInflight(area, padding) => self.get_inflight(pending, area, padding),
            Message::SetInflight(area, fd) => self.set_inflight(pending, area, fd),
            Message::GetRingBase(state) => self.get_ring_base(pending, state),
            Message::SetMemTable(regions) => self.set_mem_table(pending, regions),
            Message::AddMemReg(region, fd) => self.add_mem_reg(pending, region, fd),
            Message::RemMemReg(region) => self.rem_mem_reg(pending, &region),
            Message::ResetDevice => return self.reset(pending),
            Message::SetStatus(status) => self.set_status(pending, status),
            Message::SetRingFd { kind: RingFdKind::Kick, index, fd } => {
                self.set_kick(pending, index, fd)
            }
            message => {
                let result = self.handle_at_once(pending.request, message);
                return self.conclude(pending, result);
            }
        };
        // The others have arranged for their answer.
        if let Err(fault) = result {
            self.conclude(pending, Err(fault));
        }
    }

    /// Requests that are over when this returns, with an acknowledgement at most.
    fn handle_at_once(&mut self, request: FrontendReq, message: Message) -> Handled {
        match message {
            Message::SetOwner => Ok(()),
            Message::ResetOwner => {
                self.disable_all();
                Ok(())
            }
            Message::SetFeatures(features) => self.set_features(features),
            Message::SetProtocolFeatures(features) => self.set_protocol_features(features),
            Message::SetRingNum(state) => self.set_ring_num(state),
            Message::SetRingAddr { index, addr } => self.set_ring_addr(index, addr),
            Message::SetRingBase(state) => self.set_ring_base(state),
            Message::SetRingEnable(state) => self.set_ring_enable(state),
            Message::SetRingFd { kind, index, fd } => self.set_ring_fd(request, kind, index, fd),
            Message::SendRarp(mac) => self.need_offered(request, Protocol::RARP).map(|()| {
                self.out.push_back(Action::Rarp(mac));
            }),
            Message::SetMtu(mtu) => self.set_mtu(mtu),
            Message::SetBackendFd(fd) => self.set_backend_fd(fd),
            _ => Err(SessionFault::NotNegotiated { request }),
        }
    }

    fn set_features(&mut self, features: u64) -> Handled {
        let bits = features & !self.offered;
        self.features_refused = true;
        if bits != 0 {
            return Err(SessionFault::FeaturesNotOffered { bits });
        }
        let first_running = self.running().next();
        if let Some(queue) = first_running
            && self.features != Some(features)
        {
            return Err(SessionFault::RingRunning { request: FrontendReq::SET_FEATURES, queue });
        }
        self.features_refused = false;
        self.features = Some(features);
        self.out.push_back(Action::Features(guest_features(features)));
        if !self.protocol_features_acked() {
            for queue in 0..self.spec.rings {
                self.enable(queue, true);
            }
        }
        Ok(())
    }

    fn set_protocol_features(&mut self, features: u64) -> Handled {
        let bits = features & !self.offered_protocol;
        if bits != 0 {
            return Err(SessionFault::ProtocolFeaturesNotOffered { bits });
        }
        self.protocol = features;
        Ok(())
    }

    /// Whether rings start disabled: only a front end that knows SET_VRING_ENABLE can enable them.
    fn protocol_features_acked(&self) -> bool {
        let bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        self.features.unwrap_or(0) & bit != 0
    }

    /// SET_VRING_NUM.  0 is a ring the driver has not made: DPDK's virtio-user tells, and kicks, all it could have.
    fn set_ring_num(&mut self, RingState { index, num }: RingState) -> Handled {
        let (queue, ring) = self.ring(index)?;
        let size = match u16::try_from(num) {
            Ok(size) if size <= MAX_QUEUE_SIZE => size,
            _ => return Err(SessionFault::BadRingSize { queue, size: num }),
        };
        if ring.running && ring.size != size {
            return Err(SessionFault::RingRunning { request: FrontendReq::SET_VRING_NUM, queue });
        }
        ring.size = size;
        self.start_or_unkick(queue)
    }

    fn set_ring_addr(&mut self, index: u32, addr: RingAddr) -> Handled {
        let (queue, ring) = self.ring(index)?;
        if addr.flags != 0 {
            return Err(SessionFault::BadRingFlags { queue, flags: addr.flags });
        }
        if ring.running && ring.addr != Some(addr) {
            return Err(SessionFault::RingRunning { request: FrontendReq::SET_VRING_ADDR, queue });
        }
        ring.addr = Some(addr);
        self.start_or_unkick(queue)
    }

    fn set_ring_base(&mut self, RingState { index, num }: RingState) -> Handled {
        let (queue, ring) = self.ring(index)?;
        if ring.running {
            return Err(SessionFault::RingRunning { request: FrontendReq::SET_VRING_BASE, queue });
        }
        ring.base = Some(num);
        ring.known_base = Some(num);
        self.start_or_unkick(queue)
    }

    fn set_ring_enable(&mut self, RingState { index, num }: RingState) -> Handled {
        let (queue, _) = self.ring(index)?;
        match num {
            0 | 1 => self.enable(queue, num == 1),
            value => return Err(SessionFault::BadEnable { queue, value }),
        }
        Ok(())
    }

    fn set_ring_fd(
        &mut self,
        request: FrontendReq,
        kind: RingFdKind,
        index: u32,
        fd: Option<OwnedFd>,
    ) -> Handled {
        let (queue, ring) = self.ring(index)?;
        let fd = event_fd(request, queue, fd)?;
        match kind {
            RingFdKind::Kick => {}
            RingFdKind::Err => ring.err = fd,
            RingFdKind::Call => {
                ring.call = fd.clone();
                if ring.running {
                    self.out.push_back(Action::SetCall { queue, call: fd });
                }
            }
        }
        Ok(())
    }

    /// SET_VRING_KICK: starts the ring, or has a running one go on with another kick.
    fn set_kick(&mut self, pending: Pending, index: u32, fd: Option<OwnedFd>) -> Handled {
        let acked = self.protocol_features_acked();
        let (queue, ring) = self.ring(index)?;
        let fd = event_fd(pending.request, queue, fd)?;
        ring.kick = fd.map_or(Kick::Polled, Kick::Fd);
        if !acked {
            ring.enabled = true;
        }
        if ring.running {
            self.stop(pending, vec![queue], Then::Restart);
            return Ok(());
        }
        self.start_or_unkick(queue)?;
        self.conclude(pending, Ok(()));
        Ok(())
    }

    /// Starts a ring that has just been described further.  One that cannot be started is not kicked any more.
    fn start_or_unkick(&mut self, queue: u16) -> Handled {
        let result = self.start(queue);
        if result.is_err() {
            self.unkick(queue);
        }
        result
    }

    fn get_ring_base(&mut self, pending: Pending, state: RingState) -> Handled {
        let (queue, ring) = self.ring(state.index)?;
        let running = if ring.running { vec![queue] } else { Vec::new() };
        self.stop(pending, running, Then::Position(queue));
        Ok(())
    }

    /// Answers GET_VRING_BASE for a ring that does not run.
    pub(super) fn answer_position(&mut self, pending: Pending, queue: u16) {
        let features = self.features.unwrap_or(0);
        let Some(ring) = self.rings.get_mut(usize::from(queue)) else { return };
        ring.kick = Kick::Unset;
        let position = ring.position(features);
        ring.known_base = Some(position);
        let mut body = u32::from(queue).to_ne_bytes().to_vec();
        body.extend_from_slice(&position.to_ne_bytes());
        self.out.push_back(Action::Forget { queue });
        self.send(reply(pending.request.into(), &body));
    }

    fn set_mem_table(&mut self, pending: Pending, regions: Vec<(RegionSpec, OwnedFd)>) -> Handled {
        if regions.is_empty() {
            return Err(SessionFault::RegionCount { count: 0 });
        }
        let regions = regions.into_iter().map(|(spec, fd)| (spec, RegionFile::from(fd))).collect();
        self.map(pending, regions, true);
        Ok(())
    }

    fn add_mem_reg(&mut self, pending: Pending, spec: RegionSpec, fd: OwnedFd) -> Handled {
        self.need(pending.request, Protocol::CONFIGURE_MEM_SLOTS)?;
        let count = self.memory.regions.len() + 1;
        if count > MAX_REGIONS {
            return Err(SessionFault::RegionCount { count });
        }
        let mut regions = self.memory.regions.clone();
        regions.push((spec, RegionFile::from(fd)));
        self.map(pending, regions, false);
        Ok(())
    }

    fn rem_mem_reg(&mut self, pending: Pending, spec: &RegionSpec) -> Handled {
        self.need(pending.request, Protocol::CONFIGURE_MEM_SLOTS)?;
        let key = |spec: &RegionSpec| (spec.guest_addr, spec.user_addr, spec.size);
        let mut regions = self.memory.regions.clone();
        regions.retain(|(other, _)| key(other) != key(spec));
        if regions.len() == self.memory.regions.len() {
            return Err(SessionFault::NoSuchRegion { guest_addr: spec.guest_addr });
        }
        if regions.is_empty() {
            self.stop(pending, self.running_reversed(), Then::Use(Memory::default()));
        } else {
            self.map(pending, regions, false);
        }
        Ok(())
    }

    fn map(&mut self, pending: Pending, regions: Vec<(RegionSpec, RegionFile)>, covering: bool) {
        self.out.push_back(Action::Map(regions.clone()));
        self.work = Work::Mapping { pending, regions, covering };
    }

    fn get_max_mem_slots(&mut self, pending: Pending) -> Handled {
        self.need(pending.request, Protocol::CONFIGURE_MEM_SLOTS)?;
        self.reply_number(pending.request.into(), MAX_REGIONS as u64);
        Ok(())
    }

    fn get_status(&mut self, pending: Pending) -> Handled {
        self.need(pending.request, Protocol::STATUS)?;
        self.reply_number(pending.request.into(), self.status.into());
        Ok(())
    }

    fn set_status(&mut self, pending: Pending, status: u64) -> Handled {
        self.need(pending.request, Protocol::STATUS)?;
        let mut status = u8::try_from(status).map_err(|_| SessionFault::BadStatus { status })?;
        if self.features_refused {
            status &= !(VIRTIO_CONFIG_S_FEATURES_OK as u8);
        }
        self.status = status;
        if status == 0 {
            self.reset(pending);
        } else {
            self.conclude(pending, Ok(()));
        }
        Ok(())
    }

    fn reset(&mut self, pending: Pending) {
        self.status = 0;
        self.stop(pending, self.running_reversed(), Then::Reset);
    }

    fn set_mtu(&mut self, mtu: u64) -> Handled {
        self.need_offered(FrontendReq::NET_SET_MTU, Protocol::MTU)?;
        match u16::try_from(mtu) {
            Ok(mtu @ MIN_MTU..) if mtu <= self.spec.max_mtu => {
                self.out.push_back(Action::Mtu(mtu));
                Ok(())
            }
            _ => Err(SessionFault::BadMtu { mtu }),
        }
    }

    fn disable_all(&mut self) {
        for queue in 0..self.spec.rings {
            self.enable(queue, false);
        }
    }

    fn enable(&mut self, queue: u16, on: bool) {
        if let Some(ring) = self.rings.get_mut(usize::from(queue))
            && ring.enabled != on
        {
            ring.enabled = on;
            if ring.running {
                self.out.push_back(Action::SetEnabled { queue, on });
            }
        }
    }

    /// The ring a request speaks of.
    fn ring(&mut self, index: u32) -> Result<(u16, &mut Ring), SessionFault> {
        let max = self.spec.rings;
        let fault = SessionFault::NoSuchRing { queue: index, max };
        let queue = u16::try_from(index).ok();
        let found = queue.and_then(|queue| Some((queue, self.rings.get_mut(usize::from(queue))?)));
        found.ok_or(fault)
    }

    /// For requests that need a protocol feature to have been negotiated.
    pub(super) fn need(&self, request: FrontendReq, feature: Protocol) -> Handled {
        if self.negotiated(feature) { Ok(()) } else { Err(SessionFault::NotNegotiated { request }) }
    }

    /// For requests that the specification allows as soon as the feature is offered.
    fn need_offered(&self, request: FrontendReq, feature: Protocol) -> Handled {
        if self.offered_protocol & feature.bits() != 0 {
            Ok(())
        } else {
            Err(SessionFault::NotNegotiated { request })
        }
    }
}

/// Takes a descriptor for an eventfd, which it must be.
fn event_fd(
    request: FrontendReq,
    queue: u16,
    fd: Option<OwnedFd>,
) -> Result<Option<Arc<EventFd>>, SessionFault> {
    let Some(fd) = fd else { return Ok(None) };
    match EventFd::from_fd(fd) {
        Ok(fd) => Ok(Some(Arc::new(fd))),
        Err(_) => Err(SessionFault::NotAnEventFd { request, queue }),
    }
}
