//! What a router delegated for one destination and one machine that packets come from: an entry that
//! matches exactly and goes before all prefixes, as a switch without routing tables would have it.
//!
//! One table for each router, written by control and read by workers without locks.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use packet::Mac;

use super::{RouteEntry, Router};
use crate::config::Switch;
use crate::error::SwitchError;
use crate::{RouteId, RouterId};

/// Routes by the packet's destination and the frame's source. Keyed with random numbers: routers choose
/// them.
#[derive(Debug, Default)]
pub(crate) struct Exact(papaya::HashMap<(IpAddr, Mac), RouteId>);

impl Router {
    /// The route of a packet to there in a frame from this machine, if there is one for just these.
    #[inline]
    pub(crate) fn exact_route(&self, to: IpAddr, from: Mac) -> Option<(RouteId, &RouteEntry)> {
        if self.exact.0.is_empty() {
            return None;
        }
        let id = *self.exact.0.pin().get(&(to, from))?;
        Some((id, self.entry(id)?))
    }
}

impl Switch {
    /// Delegates what a machine sends to one address, by this route from now on. The router's check of
    /// sources is not asked. The number of them is the caller's to limit.
    pub fn delegate_exact(
        &self,
        id: RouterId,
        to: IpAddr,
        from: Mac,
        route: RouteId,
    ) -> Result<(), SwitchError> {
        if from.is_multicast() || from.is_zero() {
            return Err(SwitchError::NotUnicast(from));
        }
        let _control = self.control.lock();
        let config = self.config.load();
        let router = config.router(id).ok_or(SwitchError::NoSuchRouter(id))?;
        let entry = router.entry(route).ok_or(SwitchError::NoSuchRoute)?;
        entry.users.fetch_add(1, Ordering::Relaxed);
        router.left(router.exact.0.pin().insert((to, from), route).copied());
        self.forget_ways(&config, id);
        Ok(())
    }

    /// Withdraws it; returns whether it was delegated. Workers may still use it until they have
    /// finished the burst they are in.
    pub fn withdraw_exact(&self, id: RouterId, to: IpAddr, from: Mac) -> Result<bool, SwitchError> {
        let _control = self.control.lock();
        let config = self.config.load();
        let router = config.router(id).ok_or(SwitchError::NoSuchRouter(id))?;
        let old = router.exact.0.pin().remove(&(to, from)).copied();
        router.left(old);
        self.forget_ways(&config, id);
        Ok(old.is_some())
    }
}
