{{/* The pools of the topology. */}}
{{- define "pd-router.pools" -}}
{{- if eq .Values.topology "plain" }}engine{{ else }}prefill decode{{ end }}
{{- end }}

{{/* The labels of the engines of a pool. */}}
{{- define "pd-router.engineLabels" -}}
app.kubernetes.io/name: vllm
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "pd-router.engineSelector" -}}
app.kubernetes.io/name=vllm,app.kubernetes.io/component={{ . }}
{{- end }}

{{/* Whether there is LMCache. */}}
{{- define "pd-router.lmcache" -}}
{{- if and (eq .Values.topology "disaggregated") (eq .Values.connector "lmcache") }}true{{ end }}
{{- end }}

{{/* What cannot be. */}}
{{- define "pd-router.check" -}}
{{- if and (include "pd-router.lmcache" .) .Values.autoscaling.enabled }}
{{- fail "autoscaling.enabled: with connector lmcache there is one router; turn one of them off" }}
{{- end }}
{{- if and .Values.gate.enabled .Values.router.adminKeySecret }}
{{- fail "router.adminKeySecret: beside the gate the router has no admin port; leave it out" }}
{{- end }}
{{- if and .Values.gate.enabled (ne .Values.topology "plain") }}
{{- fail "gate.enabled: the gate's topology is plain; set topology=plain" }}
{{- end }}
{{- end }}

{{/* The router's settings: a ConfigMap's data. */}}
{{- define "pd-router.settings" -}}
{{- $own := dict "PD_ROUTER_HOST" "0.0.0.0" "PD_ROUTER_PORT" "8000" "PD_ROUTER_ADMIN_PORT" "8001"
      "PD_ROUTER_DNS_PEERS" "pd-router-admin:8001" "PD_ROUTER_K8S_PORT" "http" "PD_ROUTER_PREFIX_CACHE" "events"
      "PD_ROUTER_LOAD_BALANCING_STRATEGY" "shortest_expected_delay"
      "PD_ROUTER_SHUTDOWN_GRACE" "30" "PD_ROUTER_LOG_FORMAT" "json" }}
{{- if eq .Values.topology "plain" }}
{{- $_ := set $own "PD_ROUTER_K8S_DECODE_SELECTOR" (include "pd-router.engineSelector" "engine") }}
{{- else }}
{{- $_ := set $own "PD_ROUTER_K8S_PREFILL_SELECTOR" (include "pd-router.engineSelector" "prefill") }}
{{- $_ := set $own "PD_ROUTER_K8S_DECODE_SELECTOR" (include "pd-router.engineSelector" "decode") }}
{{- $_ := set $own "PD_ROUTER_DISAGG_CONNECTOR_TYPE" .Values.connector }}
{{- end }}
{{- if include "pd-router.lmcache" . }}
{{- $_ := set $own "PD_ROUTER_LMCACHE_NOTIFY_BIND" "tcp://0.0.0.0:7500" }}
{{- end }}
{{- if .Values.router.adminKeySecret }}
{{- $_ := set $own "PD_ROUTER_ADMIN_KEY_FILE" "/etc/pd-router/admin/keys" }}
{{- end }}
{{- $given := deepCopy .Values.router.settings }}
{{- if eq .Values.topology "plain" }}
{{- $given = omit $given "PD_ROUTER_ROUTING_THRESHOLD" }}
{{- end }}
{{- $all := merge $given $own }}
{{- if .Values.gate.enabled }}
{{- /* The gate takes the list of engines from the port that it measures; nobody else is here. One
       router has no siblings. */}}
{{- $all = merge (dict "PD_ROUTER_ENGINE_HEADER" "on")
      (omit $all "PD_ROUTER_ADMIN_PORT" "PD_ROUTER_DNS_PEERS") }}
{{- end }}
{{- toYaml $all }}
{{- end }}
