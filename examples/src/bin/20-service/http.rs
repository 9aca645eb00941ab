//! The answers of the service over HTTP.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use tensorpost::node::WorkerState;
use tensorpost::prelude::*;
use tensorpost_actors::ready::encode_png;

use crate::messages::Weights;
use crate::tracker::{LastFrame, Look, Tracker};

/// The sources of the answers.
pub(crate) struct Service {
    pub(crate) node: Node,
    pub(crate) stream: DeviceStream,
    pub(crate) tracker: Spawned<Tracker>,
    pub(crate) weights: Publisher<Weights>,
    pub(crate) recorder: PrometheusHandle,
}

impl Service {
    pub(crate) fn new_weights(&self, threshold: f32) -> Result<Weights, TensorError> {
        let colours = self.stream.from_slice(&[3], &[0.4_f32, 0.2, 0.4])?.freeze();
        Ok(Weights { colours, threshold })
    }
}

/// An error as an answer.
struct Failed(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Failed(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{:#}\n", self.0)).into_response()
    }
}

type Shared = State<Arc<Service>>;

pub(crate) fn routes(service: Arc<Service>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/tracks", get(tracks))
        .route("/frame.png", get(frame))
        .route("/metrics", get(metrics))
        .route("/weights", post(weights))
        .route("/crash", post(crash))
        .with_state(service)
}

#[derive(Serialize)]
struct Worker {
    name: String,
    process: u32,
    runs: bool,
    restarts: u32,
}

/// Lists all workers. The service is healthy where all of them run, and the tracker answers.
async fn health(State(service): Shared) -> Result<impl IntoResponse, Failed> {
    service.tracker.ask(Look).await?;
    let workers = service.node.workers().into_iter().map(|worker| Worker {
        name: worker.name,
        process: worker.pid,
        runs: worker.state == WorkerState::Running,
        restarts: worker.restarts,
    });
    let workers: Vec<Worker> = workers.collect();
    let well = workers.iter().all(|worker| worker.runs);
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(workers)))
}

async fn tracks(State(service): Shared) -> Result<impl IntoResponse, Failed> {
    Ok(Json(service.tracker.ask(Look).await?))
}

/// Returns the last frame as the detectors saw it. The frame's tensor comes from the tracker as a lease, and
/// is read here.
async fn frame(State(service): Shared) -> Result<Response, Failed> {
    let Some(pixels) = service.tracker.ask(LastFrame).await? else {
        return Ok((StatusCode::NOT_FOUND, "there is no frame yet\n").into_response());
    };
    let encode = move || encode_png(&service.stream, &pixels, 255.0);
    let png = tokio::task::spawn_blocking(encode).await??;
    Ok(([(CONTENT_TYPE, "image/png")], png).into_response())
}

/// Returns the counters of the actors and stages, and the framework's metrics of them, in the format of
/// Prometheus.
async fn metrics(State(service): Shared) -> Result<String, Failed> {
    tokio::task::spawn_blocking(move || {
        service.node.metrics()?;
        Ok(service.recorder.render())
    })
    .await?
}

#[derive(Deserialize)]
struct NewWeights {
    threshold: f32,
}

#[derive(Serialize)]
struct Published {
    version: u64,
}

/// Publishes new weights for all detectors, which meanwhile go on with their current ones.
async fn weights(State(service): Shared, Query(new): Query<NewWeights>) -> Result<impl IntoResponse, Failed> {
    let version = service.weights.publish(service.new_weights(new.threshold)?).await?;
    Ok(Json(Published { version }))
}

#[derive(Deserialize)]
struct Whom {
    worker: String,
}

/// Kills a worker, to show that the others go on.
async fn crash(State(service): Shared, Query(whom): Query<Whom>) -> Response {
    let found = service.node.workers().into_iter().find(|worker| worker.name == whom.worker);
    let Some(worker) = found else {
        return (StatusCode::NOT_FOUND, format!("there is no worker {}\n", whom.worker)).into_response();
    };
    service.node.supervisor().kill_worker(worker.worker);
    Json(Worker { name: worker.name, process: worker.pid, runs: false, restarts: worker.restarts })
        .into_response()
}
