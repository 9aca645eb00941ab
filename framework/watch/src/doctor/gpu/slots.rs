//! The GPUs' places on the PCI bus, the widths of their links and the processors near them, as the kernel
//! reports them.

use super::super::Check;
use super::super::system::Root;

const DEVICES: &str = "sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";

/// One GPU on the bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PciSlot {
    pub(super) place: String,
    pub(super) numa_node: Option<i32>,
    pub(super) width: Option<(u32, u32)>,
    /// The current speed and the highest one.
    pub(super) speed: Option<(String, String)>,
}

/// Returns the places of NVIDIA's GPUs.
pub(super) fn places(root: &Root) -> Vec<String> {
    let is_gpu = |place: &String| {
        let read = |name: &str| root.read(format!("{DEVICES}/{place}/{name}")).unwrap_or_default();
        // The class of displays: 0x0300 and 0x0302.
        read("vendor").trim() == NVIDIA && read("class").starts_with("0x03")
    };
    root.names(DEVICES).into_iter().filter(is_gpu).collect()
}

pub(super) fn read(root: &Root) -> Vec<PciSlot> {
    let slot = |place: String| {
        let read =
            |name: &str| root.read(format!("{DEVICES}/{place}/{name}")).map(|text| text.trim().to_owned());
        let width = |name: &str| read(name)?.parse::<u32>().ok();
        PciSlot {
            numa_node: read("numa_node").and_then(|text| text.parse().ok()),
            width: width("current_link_width").zip(width("max_link_width")),
            speed: read("current_link_speed").zip(read("max_link_speed")),
            place,
        }
    };
    places(root).into_iter().map(slot).collect()
}

pub(super) fn judge(slots: &[PciSlot]) -> Vec<Check> {
    slots.iter().map(one).collect()
}

fn one(slot: &PciSlot) -> Check {
    let id = format!("pcie.{}", slot.place);
    let numa = match slot.numa_node {
        Some(node) if node >= 0 => format!("NUMA node {node} (numactl --cpunodebind={node})"),
        _ => "no NUMA node is named".to_owned(),
    };
    // An idle GPU slows its link down, so the speed is shown and not judged.
    let speed =
        slot.speed.as_ref().map_or_else(String::new, |(now, most)| format!(", {now} now, {most} at most"));
    match slot.width {
        // A virtual machine may show made-up numbers, which are no widths.
        Some((now, most)) if (1..most).contains(&now) && most <= 16 => {
            Check::limited(id, format!("{now} of {most} lanes{speed}; {numa}"))
                .needs(format!("{most} lanes"), "copies from and to the host take as much longer")
                .fix("move the GPU to a slot with all lanes, or seat it anew; lspci -vv shows LnkSta")
        }
        Some((now, most)) if now == most => Check::ok(id, format!("{now} lanes{speed}; {numa}")),
        _ => Check::ok(id, numa),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;
    use crate::doctor::system::tests::Fake;

    #[test]
    fn a_gpu_with_half_its_lanes_is_found() {
        let at = |name: &str| format!("{DEVICES}/0000:1b:00.0/{name}");
        let files = [
            (at("vendor"), "0x10de\n"),
            (at("class"), "0x030200\n"),
            (at("numa_node"), "1\n"),
            (at("current_link_width"), "8\n"),
            (at("max_link_width"), "16\n"),
            (at("current_link_speed"), "2.5 GT/s PCIe\n"),
            (at("max_link_speed"), "32.0 GT/s PCIe\n"),
            (format!("{DEVICES}/0000:00:01.0/vendor"), "0x8086\n"),
        ];
        let fake = Fake::new(&files.each_ref().map(|(path, text)| (path.as_str(), *text)));
        let slots = read(&fake.root());
        assert_eq!(slots.len(), 1);
        let check = &judge(&slots)[0];
        assert_eq!((check.id.as_str(), check.status), ("pcie.0000:1b:00.0", Status::Limited));
        assert!(check.found.contains("8 of 16") && check.found.contains("--cpunodebind=1"), "{check:?}");
        assert!(check.fix.contains("lspci"), "{check:?}");
        let whole = PciSlot { width: Some((16, 16)), ..slots[0].clone() };
        assert_eq!(one(&whole).status, Status::Ok);
        let virtual_machine = PciSlot { width: Some((0, 255)), ..PciSlot::default() };
        assert_eq!(one(&virtual_machine).status, Status::Ok);
    }
}
