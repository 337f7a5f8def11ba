//! Limits are kept to, by the disk they are of and by no other.

use std::time::Instant;

use dataplane::{DiskId, DiskLimits, Rate};
use testkit::block::{BlockDriver, Layout, Options, Request};

use crate::common::plane::Plane;
use crate::common::wait;
use crate::rig::{Files, Kind, add_with, connect, disk, memory_disk, ok, rate};

const SIZE: u64 = 1 << 20;
/// So slow that nothing of it happens in a test.
const NEVER: DiskLimits = DiskLimits { operations: None, bytes: None };

fn never() -> DiskLimits {
    // One in more than eleven days.
    DiskLimits { bytes: rate(1, 1 << 20), ..NEVER }
}

fn limited(plane: &Plane, name: &str, limits: DiskLimits) -> (DiskId, BlockDriver) {
    let files = Files::new(Kind::Memory, SIZE);
    let id = add_with(plane, name, files.image(), SIZE, |spec| spec.limits = limits);
    let options = Options { queues: 2, ..Options::new(name.len().is_multiple_of(2)) };
    (id, connect(plane, name, &options))
}

/// Requests of so many bytes, as many at once as there is room for, `count` of them; at no time
/// more than the rate and the burst allow.
fn keeps_to(driver: &mut BlockDriver, start: Instant, rate: Rate, cost: u64, count: u64) {
    let read = Request::read(0, 4096);
    let (mut submitted, mut ended) = (0, 0);
    while ended < count {
        for queue in 0..2 {
            while submitted < count && driver.submit(queue, &read, &Layout::usual(&read)).is_some()
            {
                submitted += 1;
            }
            driver.kick(queue);
            while let Some(done) = driver.poll(queue).unwrap() {
                ok(&done);
                ended += 1;
            }
        }
        // Looked at after the requests: what has ended by then is allowed by then.
        let passed = start.elapsed().as_nanos();
        let allowed = u128::from(rate.per_second.get()) * passed / 1_000_000_000 + 1;
        let allowed = allowed + u128::from(rate.burst.get().max(cost));
        assert!(u128::from(ended * cost) <= allowed, "{ended} of {cost}, allowed {allowed}");
    }
}

#[test]
fn operations_and_bytes_are_limited() {
    let plane = Plane::new();
    let operations = rate(2000, 20);
    let bytes = rate(4 << 20, 64 << 10);
    let small = rate(8 << 20, 512);
    for (name, limits, rate, cost, count) in [
        ("ops", DiskLimits { operations, ..NEVER }, operations, 1, 400),
        ("bytes", DiskLimits { bytes, ..NEVER }, bytes, 4096, 200),
        // Each costs more than the burst.
        ("small!", DiskLimits { bytes: small, ..NEVER }, small, 4096, 200),
        ("both", DiskLimits { operations, bytes }, operations, 1, 200),
    ] {
        let start = Instant::now();
        let (id, mut driver) = limited(&plane, name, limits);
        keeps_to(&mut driver, start, rate.unwrap(), cost, count);
        // Other limits from now on.
        let start = Instant::now();
        plane.host.limit_disk(id, &DiskLimits { operations: self::rate(500, 5), ..NEVER }).unwrap();
        keeps_to(&mut driver, start, self::rate(500, 5).unwrap(), 1, 50);
    }
    plane.end();
}

/// Holds a disk back: one request of two queues each waits, and more behind it.
fn held(plane: &Plane, name: &str) -> (DiskId, BlockDriver) {
    let (id, mut driver) = limited(plane, name, never());
    let large = Request::write(0, &vec![1; 64 << 10]);
    for _ in 0..16 {
        ok(&driver.run(&large).unwrap());
    }
    for queue in 0..2 {
        for _ in 0..10 {
            driver.submit(queue, &large, &Layout::usual(&large)).unwrap();
        }
        driver.kick(queue);
    }
    wait(|| "requests held".into(), || disk(&plane.host, id).in_flight == 2);
    plane.wait_asleep();
    (id, driver)
}

#[test]
fn a_limited_disk_holds_up_no_other() {
    let plane = Plane::new();
    let (_, mut slow) = held(&plane, "slow");
    let (_, _files, mut quick) = memory_disk(&plane, "quick", SIZE);
    for sector in 0..1000 {
        ok(&quick.run(&Request::write(sector, &[2; 512])).unwrap());
    }
    for queue in 0..2 {
        assert!(slow.poll(queue).unwrap().is_none());
    }
    drop((slow, quick));
    plane.end();
}

/// Lifted limits are lifted for what waits, too.
#[test]
fn what_waits_for_a_limit_goes_on_when_it_is_lifted() {
    let plane = Plane::new();
    for (name, limits) in
        [("lift", NEVER), ("change", DiskLimits { operations: rate(10_000, 1), ..NEVER })]
    {
        let (id, mut driver) = held(&plane, name);
        plane.host.limit_disk(id, &limits).unwrap();
        let ended = driver.drain().unwrap();
        assert_eq!(ended.len(), 20);
        ended.iter().for_each(|(_, done)| ok(done));
    }
    plane.end();
}

/// Stops do not wait for limits: what was taken is carried out.
#[test]
fn a_stop_while_requests_are_held_ends() {
    let plane = Plane::new();
    let (id, mut driver) = held(&plane, "stopped");
    for queue in 0..2u16 {
        driver.stop_queue(queue).unwrap();
        ok(&driver.poll(queue.into()).unwrap().expect("the one that was held"));
        assert!(driver.poll(queue.into()).unwrap().is_none(), "nothing else was taken");
    }
    plane.host.limit_disk(id, &NEVER).unwrap();
    for queue in 0..2 {
        driver.start_queue(queue).unwrap();
    }
    assert_eq!(driver.drain().unwrap().len(), 18);

    let (id, driver) = held(&plane, "removed");
    plane.run(plane.host.remove_disk(id)).unwrap();
    drop(driver);
    let (_, vanishes) = held(&plane, "vanishes");
    drop(vanishes);
    let (_, _held) = held(&plane, "shut-down");
    plane.end();
}

/// A guest that comes back finds the held request of its last session done or still to be done.
#[test]
fn held_requests_reach_the_next_session() {
    let plane = Plane::new();
    let (id, mut driver) = held(&plane, "again");
    driver.frontend.socket().shutdown(std::net::Shutdown::Both).unwrap();
    plane.host.limit_disk(id, &NEVER).unwrap();
    driver.reconnect(plane.socket("again")).unwrap();
    let ended = driver.drain().unwrap();
    assert_eq!(ended.len(), 20);
    ended.iter().for_each(|(_, done)| ok(done));
    plane.end();
}

/// A disk without an image carries nothing out: what it holds is left to who serves the queue next.
#[test]
fn a_stop_while_the_image_is_away_ends_and_loses_nothing() {
    let plane = Plane::new();
    for name in ["away", "packed!"] {
        let (id, mut driver) = held(&plane, name);
        plane.run(plane.host.pause_disk(id)).unwrap();
        for queue in 0..2u16 {
            driver.stop_queue(queue).unwrap();
            assert!(driver.poll(queue.into()).unwrap().is_none(), "there is nothing to write to");
            driver.start_queue(queue).unwrap();
        }
        let files = Files::new(Kind::Memory, SIZE);
        plane.host.limit_disk(id, &NEVER).unwrap();
        plane.host.resume_disk(id, files.image()).unwrap();
        assert_eq!(driver.drain().unwrap().len(), 20);
    }
    let (id, _driver) = held(&plane, "gone");
    plane.run(plane.host.pause_disk(id)).unwrap();
    plane.run(plane.host.remove_disk(id)).unwrap();
    plane.end();
}
