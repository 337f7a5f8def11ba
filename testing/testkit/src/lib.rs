//! What tests drive hayate with: driver-side rings, a vhost-user front end, a virtio-blk driver, lies.

pub mod block;
pub mod driver;
pub mod frontend;
