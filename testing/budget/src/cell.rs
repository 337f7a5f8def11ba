//! What is counted: kinds of traffic between two guests.

/// Bytes of the virtio-net header.
const HEADER: usize = 12;
/// Ethernet, IPv4 and TCP headers.
const ETH: usize = 14;
const IP: usize = 20;
const TCP: usize = 20;
/// Sources of a cell with many flows: each is new once, and then sends three frames more.
const FLOWS: u32 = 1000;
/// Sources the switch knows before it learns those of a cell: half the table's slots are taken, so it has just
/// been made twice as large, and with those of the cell it is less than three eighths full. At that it grows.
const CROWD: u32 = 2050;

/// One kind of traffic.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// What it is called in the budget.
    pub name: &'static str,
    /// Ring format of both guests.
    pub packed: bool,
    /// Frames shown at once.
    pub frames: usize,
    /// How often that is done.
    pub rounds: usize,
    /// Bytes of each, with the Ethernet header.
    pub len: usize,
    /// Source addresses.
    pub flows: u32,
    /// The switch has learned all of them before anything is counted.
    pub known: bool,
    /// Options of the sender's and the receiver's port.
    pub ports: [&'static str; 2],
}

const PLAIN: Cell = Cell {
    name: "",
    packed: false,
    frames: 3840,
    rounds: 1,
    len: 64,
    flows: 1,
    known: false,
    ports: ["", ""],
};
/// So many sources that a worker remembers no verdict on their frames.
const MACHINES: Cell = Cell { rounds: 12, flows: 3 * 3840, known: true, ..PLAIN };
/// One at a time: what a round trip waits for.
const ALONE: Cell = Cell { frames: 1, rounds: 500, ..PLAIN };

/// All of them. Other frames are a multiple of 96: as many full bursts. Those of GSO fill the ring with
/// their 16 pieces each. Those of many addresses come last: for a while after them no verdict is remembered.
pub const CELLS: [Cell; 14] = [
    Cell { name: "split-64", ..PLAIN },
    Cell { name: "split-1518", len: 1518, ..PLAIN },
    Cell { name: "split-vlan", ports: VLAN, ..PLAIN },
    Cell { name: "split-gso", len: GSO, frames: 192, rounds: 5, ..PLAIN },
    Cell { name: "packed-64", packed: true, ..PLAIN },
    Cell { name: "packed-1518", packed: true, len: 1518, ..PLAIN },
    Cell { name: "packed-vlan", packed: true, ports: VLAN, ..PLAIN },
    Cell { name: "packed-gso", packed: true, len: GSO, frames: 192, rounds: 5, ..PLAIN },
    Cell { name: "split-alone", ..ALONE },
    Cell { name: "packed-alone", packed: true, ..ALONE },
    Cell { name: "split-flows", flows: FLOWS, ..PLAIN },
    Cell { name: "packed-flows", packed: true, flows: FLOWS, ..PLAIN },
    Cell { name: "split-machines", ..MACHINES },
    Cell { name: "packed-machines", packed: true, ..MACHINES },
];
/// An access port, and a trunk port that gets its frames tagged.
const VLAN: [&str; 2] = ["--vlan 10", "--trunk 10"];
/// A frame of the largest size Linux sends: 15 pages, and not yet cut into segments.
const GSO: usize = ETH + IP + TCP + 60 * 1024;
/// The largest segment.
const MSS: u16 = 1460;

impl Cell {
    /// Whether addresses are learned while it is counted.
    pub(crate) fn learns(&self) -> bool {
        self.flows > 1 && !self.known
    }

    /// How often it is counted while it is over its budget; the least counts. Verdicts are remembered for a second only: if
    /// the machine pauses meanwhile, those on all flows have to be worked out again.
    pub fn times(&self) -> usize {
        if self.flows > 1 { 3 } else { 1 }
    }

    /// The frames of the sender, with their virtio-net headers.
    pub fn from_sender(&self) -> Vec<Vec<u8>> {
        (0..self.flows).map(|flow| self.frame(mac(1, 0), mac(0, flow))).collect()
    }

    /// A frame by which the receiver becomes known: tagged, if that is what its port carries.
    pub fn from_receiver(&self) -> Vec<u8> {
        let mut frame = Cell { len: 64, ..*self }.frame(mac(0, 0), mac(1, 0));
        if self.ports == VLAN {
            let tag = HEADER + 12;
            frame.splice(tag..tag, [0x81, 0x00, 0, 10]);
        }
        frame
    }

    /// A TCP segment over IPv4. One that is too large for a frame leaves its checksum and its
    /// segmentation to the device.
    fn frame(&self, dst: [u8; 6], src: [u8; 6]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        if self.len == GSO {
            // NEEDS_CSUM, GSO_TCPV4, length of all headers, segments, where the checksum goes.
            bytes[..2].copy_from_slice(&[1, 1]);
            let fields = [(ETH + IP + TCP) as u16, MSS, (ETH + IP) as u16, 16];
            for (at, field) in bytes[2..].chunks_mut(2).zip(fields) {
                at.copy_from_slice(&field.to_le_bytes());
            }
        }
        bytes.extend(dst.into_iter().chain(src).chain([0x08, 0x00]));
        // IPv4: 10.0.0.1 to 10.0.0.2, protocol 6.
        bytes.extend([0x45, 0]);
        bytes.extend(((self.len - ETH) as u16).to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        // TCP: port 4000 to port 5000, ACK.
        bytes
            .extend([0x0f, 0xa0, 0x13, 0x88, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        bytes.resize(HEADER + self.len, 0);
        bytes
    }
}

/// A frame of each source that is known before.
pub(crate) fn crowd() -> Vec<Vec<u8>> {
    (0..CROWD).map(|nth| PLAIN.frame(mac(1, 0), mac(2, nth))).collect()
}

/// A locally administered address: of a guest, one of its many.
fn mac(guest: u8, flow: u32) -> [u8; 6] {
    let [_, a, b, c] = flow.to_be_bytes();
    [2, 0, guest, a, b, c]
}
