//! A stream of the device that stands at a wait, and the hang report about it.

use std::time::Duration;

use tensorpost::node::{Hang, HangReport, Spawned, WaitsIn};
use tensorpost::prelude::*;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::Builder;
use tensorpost_tests::wait::{ask, until};

use crate::device;

const LIMIT: Duration = Duration::from_millis(500);

/// On the host: "make a tensor that is ready when the door opens."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
struct Late(Door);

/// "Give me a tensor of this one's shape, behind the wait for it." No thread waits for the device.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
struct Behind(Tensor);

struct Blocked {
    stream: DeviceStream,
    kept: Vec<Tensor>,
}

impl Actor for Blocked {
    type Context = Context<Self>;
}

impl RemoteActor for Blocked {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Blocked { stream: env.stream(), kept: Vec::new() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Late>().message::<Behind>();
    }
}

impl Handler<Late> for Blocked {
    type Result = MessageResult<Late>;

    fn handle(&mut self, Late(door): Late, _: &mut Context<Self>) -> Self::Result {
        let mut late = self.stream.zeros(DType::F32, &[4]).expect("room");
        let write = move |(late,): (&mut [f32],)| {
            let _ = door.pass();
            late.fill(1.0);
        };
        self.stream.run((late.of_mut::<f32>(),), write).expect("a host stream");
        MessageResult(late.freeze())
    }
}

impl Handler<Behind> for Blocked {
    type Result = MessageResult<Behind>;

    fn handle(&mut self, Behind(tensor): Behind, _: &mut Context<Self>) -> Self::Result {
        // The stream was put behind the tensor before the handler was called, whatever the device.
        let made = self.stream.zeros(tensor.dtype(), tensor.shape()).expect("room").freeze();
        self.kept.push(tensor);
        MessageResult(made)
    }
}

/// Returns the reports of waits, once there is one of `who` for `whom`.
fn report_of(node: &Node, who: &str, whom: &str) -> HangReport {
    let mut found = None;
    until(&format!("`{who}` is found to wait for `{whom}`"), || {
        found = node.report().unwrap().hangs.into_iter().find(|report| {
            matches!(&report.hang, Hang::Clock { waiter_name, .. } if waiter_name == who)
                && report.name == whom
        });
        found.is_some()
    });
    found.unwrap()
}

/// Three actors in a row: the second's stream waits for the first's, the third's for the second's. A GPU does
/// not say where it stands; the clocks and the waits that were put on the stream do. The last in the row is
/// killed, and nobody else.
pub(crate) fn a_stream_that_stands_still_is_named_with_whom_it_waits_for(builder: Builder) {
    let (device, _) = device();
    let node = builder.hang_limit(LIMIT, OnHang::Restart).start().unwrap();
    let soon = Restart::on_failure(5).backoff(Duration::from_millis(1), Duration::from_millis(5));
    let spawn = |name: &str, device: Device| -> Spawned<Blocked> {
        node.spawn::<Blocked>(()).name(name).device(device).restart(soon).start().unwrap()
    };
    let slow = spawn("slow", Device::host());
    let (second, third) = (spawn("second", device.clone()), spawn("third", device.clone()));
    // Anything that is slow at the first use of a device happens here, before anything is timed.
    let warm = node.host_stream().unwrap().zeros(DType::F32, &[4]).unwrap().freeze();
    let warm = ask(&node, &second.address(), Behind(warm));
    ask(&node, &third.address(), Behind(warm));
    let gate = Gate::new();
    let late = ask(&node, &slow.address(), Late(gate.door()));
    let arrival = gate.arrival();
    let behind = ask(&node, &second.address(), Behind(late));
    let ready = behind.ready().expect("it is not there");
    let last = ask(&node, &third.address(), Behind(behind.clone()));

    for (who, whom) in [("second", &slow), ("third", &second)] {
        let name = node.supervisor().worker(whom.worker()).unwrap().name;
        let report = report_of(&node, who, &name);
        println!("{report}");
        let Hang::Clock { waits_in, clock, value, now, .. } = &report.hang else { panic!("{report}") };
        assert!(matches!(waits_in, WaitsIn::Stream { device: on, .. } if *on == device.id()), "{report}");
        assert!(now < value && report.lasted >= LIMIT, "{report}");
        assert_eq!(report.worker, Some(whom.worker()), "{report}");
        if who == "third" {
            assert_eq!((*clock, *value), (ready.slot, ready.value), "{report}");
        }
    }
    until("the one to blame is restarted", || node.supervisor().worker(slow.worker()).unwrap().restarts > 0);
    drop(arrival);
    // DEATH-1, DEATH-3: both streams go on, and the results that depend on the dead are known to be lost.
    let lost = |tensor: &Tensor| matches!(tensor.wait(None), Err(TensorError::Tainted { .. }));
    assert!(lost(&behind) && lost(&last));
    let reports = node.report().unwrap().hangs;
    assert!(reports.iter().all(|report| report.killed == (report.name == "slow")), "{reports:?}");
    for innocent in [&second, &third] {
        assert_eq!(node.supervisor().worker(innocent.worker()).unwrap().restarts, 0);
        let fresh = node.host_stream().unwrap().zeros(DType::F32, &[4]).unwrap().freeze();
        ask(&node, &innocent.address(), Behind(fresh)).wait(None).unwrap();
    }
}
