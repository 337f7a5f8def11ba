//! What tests drive hayate with: driver-side rings, a vhost-user front end, lies.

pub mod driver;
pub mod frontend;
